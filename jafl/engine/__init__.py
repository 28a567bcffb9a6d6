"""The engine: plans a schedule, and runs the plan on the device, as one jitted program."""
