"""What a call costs from Python: rollout beside mujoco.rollout and mujoco.batch.

    python bench/bench.py [--rounds N] [--threads N] [--json FILE]

All contenders do the same work in one process, on the libmujoco that `import mujoco`
loaded, from the same start states and controls into arrays of states and sensor
values. `contenders.py` says what they are, `README.md` how to read the table.

Machines are noisy: others use them, and clocks go up and down. So nothing is
compared with something measured much later. A round runs each contender once, in
an order that rotates, and times are divided by each other within a round; the
medians of these ratios over all rounds are reported, with their quartiles.

All contenders must give the same bits, or it was not the same work. That is
checked before anything is measured and after every round, and the program fails if
it is not so.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import report
from contenders import Contender, Steps, contenders
from problem import WORKLOADS, Problem, Workload, load
from report import Key, Result

NWARMUP = 2  # rounds that do not count, before those that do
SMALL_ROUNDS = 10  # times as many rounds of small work, which are short
SUITE = Path(__file__).parents[1] / ".deps/dm_control/suite"


def measure(problem: Problem, nthreads: list[int], nround: int) -> Result:
    """Times all contenders, with each number of threads, in the same rounds."""
    with ExitStack() as resources:
        running = [c for n in nthreads for c in contenders(problem, n, resources)]
        for contender in running:
            contender.call()
        check_bits(problem.work, running)

        turns: list[Contender | Steps] = [*running, Steps(problem)]
        times: dict[Key, list[float]] = {Key(turn.name, turn.nthread): [] for turn in turns}
        for round_ in range(NWARMUP + nround):
            gc.collect()
            for position in range(len(turns)):
                turn = turns[(round_ + position) % len(turns)]
                # Threads that still look out for the last one's next call fall asleep.
                time.sleep(0.0005)
                gc.disable()
                seconds = turn.seconds(problem.work.ncall)
                gc.enable()
                if round_ >= NWARMUP:
                    times[Key(turn.name, turn.nthread)].append(seconds)
            check_bits(problem.work, running)
    return Result(problem.work, times)


def check_bits(work: Workload, running: list[Contender]) -> None:
    """Ends the program if not all contenders wrote the same."""
    first = running[0]
    for contender in running[1:]:
        for what in ("state", "sensordata"):
            wanted, got = getattr(first, what), getattr(contender, what)
            if wanted.shape != got.shape or wanted.tobytes() != got.tobytes():
                sys.exit(
                    f"bench: {work.title}: the {what} of `{contender.name}` with nthread "
                    f"{contender.nthread} differs from that of `{first.name}`"
                )


def nthreads_of(work: Workload, nthread: int) -> list[int]:
    """Small work is also done without threads: it is hardly worth a second one."""
    return [nthread, 0] if work.small and nthread > 0 else [nthread]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures rollout beside its peers in Python.")
    ncpu = len(os.sched_getaffinity(0))
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="default: 15")
    parser.add_argument(
        "--threads", type=int, default=ncpu, metavar="N", help=f"default: the CPUs, {ncpu}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers")
    parser.add_argument(
        "--suite", type=Path, default=SUITE, metavar="FOLDER", help="dm_control's models"
    )
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 0:
        parser.error("there must be a round, and no fewer than 0 threads")
    return options


def main() -> None:
    options = parse()
    run = report.Run(options.threads, options.rounds)
    report.print_head(run)
    results = []
    for work in WORKLOADS:
        problem = load(options.suite, work)
        nround = options.rounds * (SMALL_ROUNDS if work.small else 1)
        results.append(measure(problem, nthreads_of(work, options.threads), nround))
        report.print_result(results[-1])
    report.print_best(results)
    print("bits equal: all contenders, in every round")
    if options.json:
        options.json.write_text(json.dumps(report.as_json(run, results), indent=2) + "\n")


if __name__ == "__main__":
    main()
