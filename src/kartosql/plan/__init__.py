"""Statement and snapshot to pruned scan: pure steps from one frozen value to the next."""
