"""Energy: the cost of spikes, in columns that state what they count."""

from onespike.energy.columns import COLUMNS as COLUMNS
from onespike.energy.columns import READINGS as READINGS
from onespike.energy.columns import Column as Column
from onespike.energy.columns import Item as Item
from onespike.energy.columns import Reading as Reading
from onespike.energy.ledger import Ledger as Ledger
from onespike.energy.metering import metered as metered
from onespike.energy.profiles import Profile as Profile
from onespike.energy.profiles import profile as profile
from onespike.energy.spike_counts import SiteCount as SiteCount
