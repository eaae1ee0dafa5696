"""Services for every stage: processes that share work, devices, files written in one step."""

from onespike.runtime.atomic import atomic_directory as atomic_directory
from onespike.runtime.atomic import sha256 as sha256
from onespike.runtime.atomic import write_atomically as write_atomically
from onespike.runtime.devices import check_device as check_device
from onespike.runtime.devices import place_ as place_
from onespike.runtime.processes import ALONE as ALONE
from onespike.runtime.processes import Processes as Processes
