"""WHERE things go: routing traces, hardware profiles, cost model, solver and plan. Numbers only: numpy and scipy."""
