"""Services for every stage: batches, devices, networks on disk, processes that share work, files written in one step."""
