"""Serving under load in the simulator, on measured and on analytic tables: curves, demands, bounds, open questions.

Responses are the recorded ones of `anchor_survey` (untrimmed blocks at every token, thinking off), in equal shares of
the domains. Tables are those of `companion profile`, and the roofline of Qwen3-4B on an H200, which nobody measured:
what is accepted on it is still what tiny-qwen3's drafter has accepted, so that it tells shapes and not speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from tqdm import tqdm

from companion.engine.load import data_folder, find_model
from companion.experiments.anchor_recording import Recording, provenance_of
from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.load import study as real_load
from companion.experiments.load.policies import JUDGED, POLICIES, fitted
from companion.experiments.load.summary import AT_LEAST
from companion.experiments.simulation.bounds import Empty, Queue, Share, empty, queues, shares
from companion.experiments.simulation.frontier import Agreement, Matched, agreements, matched
from companion.experiments.simulation.points import ORACLE, SAME_STEP, Point, Served, loads, points
from companion.experiments.simulation.questions import Compared, Fair, Part, drifts, fairness, gaps, parts
from companion.experiments.simulation.replays import of_mode, replays
from companion.experiments.simulation.tables import Clock, cpu, gpu
from companion.experiments.simulation.validation import Validated, bars, validate
from companion.experiments.stored import read_result
from companion.parallel import ordered_map
from companion.provenance import collect, file_hash, shortened, write_json

FEW = ("plain", "fixed-1", "fixed-3", "fixed-5", "fixed-7", "prefix", *JUDGED, "goodput")


class Config(BaseModel):
    drafter: str = "dspark"
    independent: str = "dflash"  # the drafter without a sequential head that gains are counted from
    temperatures: tuple[float, ...] = (1.0, 0.0)
    policies: tuple[str, ...] = POLICIES  # at the first temperature; at others those of `FEW`
    cpu: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # concurrencies
    gpu: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    threads: tuple[int, ...] = (1, 2)
    seeds: int = 8
    asked_at: tuple[int, ...] = (8, 32)  # concurrencies of the open questions, on a CPU
    asked_at_gpu: tuple[int, ...] = (32, 64, 128)
    seed: int = 0

    def quick(self) -> Config:
        """Few loads and seeds: enough to see that everything works."""
        few = {"temperatures": (1.0,), "policies": FEW, "cpu": (1, 8), "gpu": (1, 32), "threads": (1,), "seeds": 2}
        return self.model_copy(update=few | {"asked_at": (8,), "asked_at_gpu": (32,)})


class Result(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    tables: dict[str, dict[str, Any]]  # name -> where its times come from; "measured" says whether they are
    points: list[Point]
    agreements: list[Agreement]
    matched: list[Matched]
    empty: list[Empty]
    gaps: list[Compared]
    drifts: list[Compared]
    parts: list[Part]
    fairness: list[Fair]
    queues: list[Queue]
    shares: list[Share]
    validated: list[Validated]  # empty without real runs
    provenance: dict[str, Any]


def run(
    output: Path | None = None,
    config: Config | None = None,
    *,
    anchors: Path | None = None,
    capacity: Path | None = None,
    calibration: Path | None = None,
    real: Path | None = None,
    workers: int = 1,
) -> Result:
    """Simulate in ``workers`` processes, and write ``output`` (JSON) when all is there. By default everything is the
    book's.

    Without a measured table only the analytic one is used, and without real runs nothing is validated: both bars are
    then inconclusive. ValueError for settings that simulate nothing, or recordings that cannot be replayed.
    """
    config = config or Config()
    _check(config)
    stored = data_folder() / "results"
    folders = [anchors] if anchors is not None else [stored / "load_anchors", stored / "anchors"]
    study = _Study(config, folders, calibration or stored / "calibration")
    capacity, real = capacity or stored / "capacity_cpu.json", real or stored / "load_cpu.json"
    first = study.served(config.temperatures[0])
    source, model = provenance_of(study.used[0]), find_model(config.drafter)
    described, other = model.describe(), find_model(source["target"]["name"])
    if described["weights_sha256"] != source["drafter"]["weights_sha256"]:
        raise ValueError(
            f"the blocks in {study.used[0].parent} are not of the weights of {config.drafter}: record its own"
        )
    measured = [cpu(capacity, t) for t in config.threads] if capacity.is_file() else []
    tables = [*measured, gpu()]
    known = real_load.load(real) if real.is_file() and measured else None
    if known is not None and known.provenance["settings"].get("capacity_sha256") != file_hash(capacity):
        raise ValueError(f"the runs in {real} went by another table than {capacity}: name the table that they used")
    found = study.points(tables, workers)
    asked = study.questions(measured, workers)
    validated = [] if known is None else study.validated(known, capacity)
    judged = [*_bars(found), *bars(validated)]
    result = Result(
        config=config,
        verdict=verdict(judged),
        bars=judged,
        tables={t.name: {"measured": t.measured, **t.capacity.provenance} for t in (*tables, _tiles())},
        points=found,
        agreements=list(agreements(found)),
        matched=list(matched(found)),
        shares=list(shares(other.path, model.path, tables, first.raw)),
        validated=validated,
        **asked,
        provenance=collect(
            target=source["target"],
            drafter=described,
            thinking=False,
            sampling={"temperatures": list(config.temperatures)},
            seeds=list(range(config.seed, config.seed + config.seeds)),
            anchors={f"{path.parent.name}/{path.name}": file_hash(path) for path in study.used},
            capacity_sha256=file_hash(capacity) if measured else None,
            real_sha256=file_hash(real) if known is not None else None,
        )
        | {"prompt_set": source["prompt_set"]},
    )
    result = Result.model_validate(shortened(result.model_dump(mode="json")))
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


class _Study:
    """Recordings, read once, and everything that is simulated with them."""

    def __init__(self, config: Config, folders: Sequence[Path], calibration: Path) -> None:
        self.config, self.folders, self.calibration = config, folders, calibration
        self.seeds = range(config.seed, config.seed + config.seeds)
        self.used: list[Path] = []
        self._known: dict[tuple[float, str, str], Served] = {}

    def served(self, temperature: float, mode: str = "no_think", drafter: str | None = None) -> Served:
        """The responses of a drafter, by default the one in question. ValueError where none were recorded."""
        key = temperature, mode, drafter or self.config.drafter
        if key not in self._known:
            self._known[key] = self._read(*key)
        return self._known[key]

    def _read(self, temperature: float, mode: str, drafter: str) -> Served:
        found = self.recorded(temperature, mode, drafter)
        if found is None:
            raise ValueError(
                f"{self.folders[0]} has no blocks of {drafter} at temperature {temperature:g} with mode {mode}; "
                "`companion experiment anchors` records them"
            )
        path, recording = found
        self.used.append(path)
        raw = of_mode(replays(recording), mode)
        if raw[0].confidence is None:
            return Served(raw, raw, temperature)
        model = recording.provenance["drafter"]
        temperatures = fitted(self.calibration, model, f"{temperature:g}", mode == "think")
        return Served(of_mode(replays(recording, temperatures), mode), raw, temperature)

    def recorded(self, temperature: float, mode: str, drafter: str) -> tuple[Path, Recording] | None:
        """Of the first folder that has responses of this mode."""
        for folder in self.folders:
            path = folder / f"{drafter}-0-T{temperature:g}.npz"
            recording = Recording.load(path) if path.is_file() else None
            if recording is not None and any(r.mode == mode for r in recording.responses):
                return path, recording
        return None

    def points(self, tables: Sequence[Clock], workers: int) -> list[Point]:
        """Every policy on every table at every concurrency and temperature."""
        config = self.config
        for temperature in config.temperatures:
            self.served(temperature)  # read once, and not by every process
        places = [
            (clock, temperature, concurrency)
            for clock in tables
            for temperature in config.temperatures
            for concurrency in (config.cpu if clock.measured else config.gpu)
        ]
        found = ordered_map(self._place, places, workers)
        return [p for own in tqdm(found, total=len(places), desc="loads", unit="load", disable=None) for p in own]

    def _place(self, place: tuple[Clock, float, int]) -> list[Point]:
        clock, temperature, concurrency = place
        names = self.config.policies if temperature == self.config.temperatures[0] else FEW
        served = self.served(temperature)
        return points(
            clock, served, concurrency, loads([*names, SAME_STEP, ORACLE], clock, served, concurrency, self.seeds)
        )

    def questions(self, measured: Sequence[Clock], workers: int) -> dict[str, Any]:
        """The fields of the result that answer the open questions, at the first temperature."""
        config, found = self.config, dict[str, list[Any]]()
        temperature = config.temperatures[0]
        served = self.served(temperature)
        self.served(temperature, drafter=config.independent)
        roof, jagged = gpu(), _tiles()
        places = [(clock, c) for clock in measured for c in config.asked_at] + [(roof, c) for c in config.asked_at_gpu]
        asked = ordered_map(self._asked, places, workers)
        for own in tqdm(asked, total=len(places), desc="questions", unit="load", disable=None):
            for name, rows in own.items():
                found.setdefault(name, []).extend(rows)
        for concurrency in config.asked_at_gpu:
            found["gaps"].extend(gaps(jagged, served, concurrency, self.seeds))
        found["empty"] = [
            empty(t, self.served(at), self.seeds) for t in (*measured, roof) for at in config.temperatures
        ]
        found["queues"] = [
            queue
            for clock in (*measured[:1], roof)
            for queue in queues(
                clock, served, max(config.asked_at if clock.measured else config.asked_at_gpu), self.seeds
            )
        ]
        return found

    def _asked(self, place: tuple[Clock, int]) -> dict[str, list[Any]]:
        clock, concurrency = place
        temperature = self.config.temperatures[0]
        arguments = clock, self.served(temperature), concurrency, self.seeds
        against = None
        if not clock.measured:
            against = gpu(rank=0), self.served(temperature, drafter=self.config.independent)
        return {
            "gaps": list(gaps(*arguments)),
            "drifts": list(drifts(*arguments)),
            "parts": list(parts(*arguments, against)),
            "fairness": list(fairness(*arguments)),
        }

    def validated(self, real: real_load.Result, capacity: Path) -> list[Validated]:
        """Real cells of settings whose temperature was recorded."""
        settings = {s.name: s for s in real.config.settings}

        def responses(setting: str) -> Served | None:
            own = settings[setting]
            mode = "think" if own.thinking else "no_think"
            there = self.recorded(own.temperature, mode, self.config.drafter) is not None
            return self.served(own.temperature, mode) if there else None

        with tqdm(total=len(real.cells), desc="validation", unit="cell", disable=None) as progress:
            clock = partial(cpu, capacity)
            return list(validate(real, clock, responses, self.seeds, progress.update))


def _tiles() -> Clock:
    return gpu(tile=128)


def _check(config: Config) -> None:
    for name in ("temperatures", "gpu", "asked_at_gpu", "cpu", "asked_at", "threads"):
        values = getattr(config, name)
        least = 0.0 if name == "temperatures" else 1
        if not values or min(values) < least:
            raise ValueError(f"{name} needs at least one number from {least:g} on, got {list(values)}")
    if config.seeds < 2:
        raise ValueError(f"seeds must be at least 2 for an interval, got {config.seeds}")


def _bars(found: Sequence[Point]) -> list[Bar]:
    """Both deployed forms over the best static depth; one bar a table and temperature, of the least of all loads."""
    bars = []
    for place in dict.fromkeys((p.table, p.temperature, p.policy) for p in found if p.policy in JUDGED):
        table, temperature, policy = place
        own = [p for p in found if (p.table, p.temperature, p.policy) == place]
        there = [(p.over_static, p.concurrency) for p in own if p.over_static is not None]
        least, at = min(there, key=lambda pair: pair[0].value)
        name = f"{policy} over the best static depth, least of all loads (at {at}), T {temperature:g}; {table}"
        bars.append(judge(name, AT_LEAST, least.value, least.low, least.high, len(there)))
    return bars


def load(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    return read_result(path, Result, "experiment load-simulation")


def show(result: Result) -> None:
    """Print every table."""
    from companion.experiments.simulation.report import show as printed

    printed(result)
