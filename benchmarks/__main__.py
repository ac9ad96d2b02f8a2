"""The command: `python -m benchmarks [WORKLOAD…]`.

Each round has every workload, and in each of these the peers take turns, in reverse order every other round: a
machine that warms up or is disturbed favours none of them, nor one of two workloads whose figures are compared.
Progress goes to standard error, the report to standard output.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import psutil

from benchmarks.measure import FULL, QUICK, Scale
from benchmarks.peers import PEERS
from benchmarks.report import Results, Run, render
from benchmarks.stage import Failed, Stage
from benchmarks.workloads import WORKLOADS

HELP = f"""Measure kiqcluster beside its peers, and print what each figure has to reach.

\b
Workloads (default: all): {", ".join(list(WORKLOADS)[:7])},
                          {", ".join(list(WORKLOADS)[7:])}
Peers (default: all):     {", ".join(PEERS)}

To measure another checkout of kiqcluster, name it in PYTHONPATH.
"""


def comma_list(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str]:
    """Return the peers that were named.  Raises BadParameter for others."""
    names = list(PEERS) if text is None else text.split(",")
    if unknown := set(names) - set(PEERS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: the peers are {', '.join(PEERS)}")
    return names


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("workloads", nargs=-1, type=click.Choice(list(WORKLOADS)), metavar="[WORKLOAD…]")
@click.option("--peers", callback=comma_list, metavar="NAME,…", help="only these  [all]")
@click.option("--rounds", type=click.IntRange(1), default=None, metavar="N", help="of each run  [3; 1 with --quick]")
@click.option("--quick", is_flag=True, help="runs so short that they show only that everything works")
@click.option("--seconds", type=float, metavar="S", help="that a run for a rate takes, roughly  [4]")
@click.option("--json", "file", type=click.Path(path_type=Path), metavar="FILE", help="save every single figure there")
def main(
    workloads: tuple[str, ...],
    peers: list[str],
    rounds: int | None,
    quick: bool,
    seconds: float | None,
    file: Path | None,
) -> None:
    rounds = rounds or (1 if quick else 3)
    scale = QUICK if quick else FULL
    scale = replace(scale, seconds=seconds or scale.seconds)
    with TemporaryDirectory(prefix="kiq-bench-") as folder:
        stage = Stage(Path(folder))
        results = Results(conditions(stage, rounds, scale), {}, {})
        try:
            look_who_is_there(stage, peers, results)
            for run in runs(stage, workloads or list(WORKLOADS), list(results.peers), rounds, scale):
                results.runs.append(run)
                tell(run)
        except KeyboardInterrupt:
            results.conditions["interrupted"] = "this is not all that was asked for"
        finally:
            stage.close()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(results), indent=1))
    click.echo(render(results), nl=False)
    if "interrupted" in results.conditions or any(run.failure for run in results.runs):
        sys.exit(1)


def look_who_is_there(stage: Stage, names: Sequence[str], results: Results) -> None:
    """Note which peers can take part, and why others cannot."""
    for name in names:
        try:
            with stage.pusher(PEERS[name]) as pusher:
                results.peers[name] = f"{pusher.description}; {PEERS[name].configuration}"
        except Failed as failure:
            results.absent[name] = str(failure)
            click.echo(f"{name} takes no part: {failure}", err=True)


def runs(stage: Stage, workloads: Sequence[str], peers: Sequence[str], rounds: int, scale: Scale) -> Iterator[Run]:
    """Run everything; a run that fails takes no other with it."""
    for number in range(1, rounds + 1):
        for name in workloads:
            takers = [peer for peer in WORKLOADS[name].peers if peer in peers]
            for peer in takers if number % 2 else reversed(takers):
                try:
                    figures, failure = WORKLOADS[name].run(stage, PEERS[peer], scale), ""
                except Exception as reason:  # noqa: BLE001  # whatever it is, the session goes on without this run
                    figures, failure = {}, str(reason) or repr(reason)
                yield Run(name, peer, number, figures, failure)


def tell(run: Run) -> None:
    shown = {
        column.heading: format(run.figures[column.figure], column.form)
        for column in WORKLOADS[run.workload].columns
        if column.figure in run.figures
    }
    words = run.failure or ", ".join(f"{value} {heading}" for heading, value in shown.items())
    click.echo(f"{run.workload} #{run.round} {run.peer}: {words}", err=True)


def conditions(stage: Stage, rounds: int, scale: Scale) -> dict[str, str]:
    """Return what the figures hold for."""
    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total / 2**30
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{processor()}, {cores} cores, {memory:.0f} GB, Linux {platform.release()}",
        "Python": platform.python_version(),
        "server": stage.server.description(),
        "rounds": f"{rounds}, workloads and peers in turns, in reverse order every other round; medians (least–most)",
        "scale": ", ".join(f"{name} {value:g}" for name, value in asdict(scale).items()),
        **({"beware": "runs this short show that everything works, and nothing else"} if scale.seconds < 1 else {}),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
