"""Times training steps within budgets beside eager mode."""

import sys
import time
from statistics import median

import spillway

WARM_UP_STEPS = 3  # they map memory


def print_row(name, steps, trains):
    """Prints the median CPU time of a step in eager mode, and those of other ways as multiples of it. `trains`
    has what trains a step, by name, with "eager" first. All take turns, and a way that has no plan leaves."""
    times = {k: [] for k in trains}
    ways = dict(trains)
    for _ in range(WARM_UP_STEPS + steps):
        for k, train in list(ways.items()):
            start = time.process_time()
            try:
                train()
            except spillway.InfeasibleError as error:
                print(f"{name}, {k}: {error}", file=sys.stderr)
                del ways[k]
            else:
                times[k].append(time.process_time() - start)
    eager, *others = (median(t[WARM_UP_STEPS:]) if t else None for t in times.values())
    ratios = " | ".join("" if other is None else f"{other / eager:.2f}" for other in others)
    print(f"| {name} | {1000 * eager:.0f} ms | {ratios} |", flush=True)
