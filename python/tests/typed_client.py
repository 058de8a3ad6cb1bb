"""A program that uses all public names of spillway, for `mypy --strict`: never run. Where a comment ignores
an error, the line is a wrong use, which must be refused: a needless one is an error itself."""

import pickle
from pathlib import Path

from typing_extensions import assert_type

import spillway
from spillway import streaming


class Kernels:
    def launch(
        self,
        op: int,
        iteration: int,
        is_repeat: bool,
        reads: tuple[spillway.MemoryRange | None, ...],
        writes: tuple[spillway.MemoryRange | None, ...],
        workspace: spillway.MemoryRange | None,
    ) -> None:
        for memory in filter(None, [*reads, *writes, workspace]):
            assert_type(memory.address + memory.bytes, int)
            memory.view("f")[0] = memory.view()[1]
            memory.bytes = 8  # type: ignore[misc]

    def fill_input(self, tensor: int, iteration: int, memory: spillway.MemoryRange) -> None:
        memory.write(bytes(memory.bytes))


class Addresses:
    def launch(
        self, op: int, iteration: int, is_repeat: bool, reads: tuple[int, ...], writes: tuple[int, ...], workspace: int
    ) -> None: ...


class OneArgument:
    def launch(self, op: int) -> None: ...


def plan_of(text: bytes) -> spillway.Plan:
    graph = spillway.Graph("step")
    x = graph.input("x", 4096)
    w = graph.state("w", 1 << 20)
    y = graph.temporary("y", 4096)
    z = graph.output("z", 4096)
    assert_type(x, int)
    graph.op("matmul", 20_000, reads=[x, w], writes=[y], repeatable=True, host_ns=50_000)
    assert_type(graph.op("update", 10_000, (y, w), (w, z), workspace_bytes=64), int)
    graph.check()
    machine = spillway.Machine(graph.name, 1 << 34, 1 << 36, 1 << 21, 10**10, 10**10)
    machine = spillway.Machine.builtin("v100-pcie3").with_chunk_bytes(machine.chunk_bytes)
    assert_type(graph.min_feasible_bytes(machine, strategy="auto", settings={"effort": 50}), int)
    assert_type(machine.name + str(machine.device_bytes), str)
    same = spillway.Graph.from_json(graph.to_json()), spillway.Machine.from_json(machine.to_json())
    assert_type(same, tuple[spillway.Graph, spillway.Machine])
    assert_type(pickle.dumps(graph.plan(machine, "35%")), bytes)

    graph.state("w")  # type: ignore[call-arg]
    graph.input("x", 4096.0)  # type: ignore[arg-type]
    graph.op("matmul", 20_000, reads=x, writes=[y])  # type: ignore[arg-type]
    graph.plan(machine, placed=False)
    graph.plan(machine, 0.5)  # type: ignore[arg-type]
    graph.plan("v100-pcie3")  # type: ignore[arg-type]
    machine.chunk_bytes = 1 << 20  # type: ignore[misc]
    return spillway.Plan.from_json(text, graph, machine)


def numbers(plan: spillway.Plan) -> list[int | None]:
    plan.check()
    plan = plan.with_setup_costs(spillway.SetupCosts.measure())
    assert_type(plan.report() + plan.summary() + plan.strategy, str)
    assert_type(plan.host_ops, list[int])
    assert_type(plan.unplaced, str | None)
    assert_type(plan.leaves_alone(1, after=0, before=2), bool)
    assert_type(plan.arranged_after(plan).graph, spillway.Graph)
    assert_type(plan.between(plan).graph, spillway.Graph)
    assert_type(plan.machine, spillway.Machine)
    assert_type(plan.setup_costs, spillway.SetupCosts | None)
    costs = spillway.SetupCosts(1, map_ns=2, touch_ns_per_page=3)
    assert_type(costs.create_ns_per_page + costs.map_ns + costs.touch_ns_per_page, int)
    p, s = plan.figures, plan.switch_to(plan)
    assert_type(p, spillway.Figures)
    assert_type(s, spillway.SwitchFigures)
    times = p.period_ns, p.compute_ns, p.repeat_ns, p.host_ns, p.stall_ns, s.time_ns + s.mapping_ns, plan.setup_ns
    assert_type(p.reordered, bool)
    counts = p.repeats, p.on_host, p.steps, p.mapping_ns
    sizes = p.waste_bytes, p.peak_bytes, p.h2d_bytes, p.d2h_bytes, p.host_bytes, s.kept_bytes, plan.in_core_peak_bytes
    return [*times, *sizes, *counts, s.h2d_bytes, s.d2h_bytes, plan.budget_bytes, plan.mapped_bytes, plan.mappings]


def stream(machine: spillway.Machine) -> int:
    layer = streaming.Layer(
        1 << 20, 1000, host_ns=9000, activation_bytes=64, cache_bytes=8, output_bytes=8, name="a"
    )
    layers = [layer]
    assert_type(layers, list[streaming.Layer])
    assert_type(streaming.plan(layers, machine, "50%"), spillway.Plan)
    streaming.plan(layers, machine, 0.5)  # type: ignore[arg-type]
    streaming.Layer(1 << 20)  # type: ignore[call-arg]
    return streaming.min_feasible_bytes(layers, machine)


def run(plan: spillway.Plan, weights: bytearray) -> None:
    plan.lower_bound_ns.bit_length()
    with spillway.Session(plan, Kernels(), others=[plan]) as session:
        session.write_state(1, weights)
        session.step()
        session.run(2)
        session.wait()
        session.read_state(1, memoryview(weights))
        session.read_output(3, weights, iteration=1)
        session.save_states(Path("states"), progress=lambda done, of: done / of)
        assert_type(session.load_states("states", all=False), int | None)
        assert_type(session.switch(plan, Kernels()).time_ns, int)
        assert_type(session.iterations + session.device_bytes, int)
        assert_type(session.stream, int | None)
        assert_type(session.network_stream, int | None)
    session.close()

    spillway.Session(plan, OneArgument())  # type: ignore[arg-type]
    spillway.Session(plan, Addresses())  # type: ignore[arg-type]
    spillway.MemoryRange(0, 8)  # type: ignore[call-arg]
    spillway.Session(plan)  # type: ignore[call-arg]
    session.run()  # type: ignore[call-arg]
    session.write_state("w", weights)  # type: ignore[arg-type]


def run_on_cuda(graph: spillway.Graph) -> None:
    device = spillway.Cuda(0, driver=Path("libcuda.so.1"))
    assert_type(device.name, str)
    plan = graph.plan(device.measure(chunk_bytes=1 << 21), "8GiB")
    spillway.Session(plan, Kernels(), device=device)
    spillway.Session(plan, Kernels(), device="cuda")  # type: ignore[arg-type]


def min_feasible_bytes(work: Exception) -> int:
    if isinstance(work, spillway.InfeasibleError):
        assert_type(work.op, str)
        return work.min_feasible_bytes - work.budget_bytes
    known = (
        spillway.BudgetError,
        spillway.DeviceError,
        spillway.FormatError,
        spillway.GraphError,
        spillway.InvalidPlanError,
        spillway.PlanningError,
        spillway.SessionError,
        spillway.SwitchError,
    )
    raise work if isinstance(work, (spillway.Error, *known)) else TypeError
