"""Times training steps within budgets beside eager mode."""

import sys
import time
from statistics import median

import spillway

WARM_UP_STEPS = 3  # they map memory


def print_row(name, steps, trains, plans={}):
    """Prints the median CPU time of a step in eager mode, and the median CPU times of other ways as multiples of it. In
    brackets, it prints their median elapsed times as multiples of the periods that their `plans` predict. `trains` has
    a function for each way, by name, which trains a step; "eager" comes first. All take turns, and a way that has no
    plan leaves."""
    times = {k: [] for k in trains}
    ways = dict(trains)
    for _ in range(WARM_UP_STEPS + steps):
        for k, train in list(ways.items()):
            start = time.process_time(), time.perf_counter()
            try:
                train()
            except spillway.InfeasibleError as error:
                print(f"{name}, {k}: {error}", file=sys.stderr)
                del ways[k]
            else:
                times[k].append((time.process_time() - start[0], time.perf_counter() - start[1]))
    medians = {k: tuple(map(median, zip(*t[WARM_UP_STEPS:]))) for k, t in times.items() if k in ways}
    eager, *others = times
    cells = (_cell(medians.get(k), medians[eager], plans.get(k)) for k in others)
    print(f"| {name} | {1000 * medians[eager][0]:.0f} ms | {' | '.join(cells)} |", flush=True)


def _cell(seconds, eager, plan):
    if seconds is None:
        return ""
    ratio = f"{seconds[0] / eager[0]:.2f}"
    return ratio if plan is None else f"{ratio} ({1e9 * seconds[1] / plan.figures.period_ns:.2f})"
