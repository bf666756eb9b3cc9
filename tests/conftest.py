"""What every test gets: the host as its device, whatever the machine and the environment offer."""

import os

from hypothesis import HealthCheck, settings

# Read when dagpu is first imported or when a device is first asked for, so it is set before either.
os.environ["DAGPU_DEVICE"] = "host"
os.environ.pop("DAGPU_CHECKED", None)

# Properties are derandomised so that a red run is red again; deadlines are off because tests share their
# cores with other work, and no test here asserts how long anything takes.
settings.register_profile("dagpu", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dagpu")
