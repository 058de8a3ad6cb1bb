"""Steps with several optimizers: `loss_fn` calls their steps itself, or one backward pass serves all."""

import copy
import json
from pathlib import Path
from unittest import mock

import pytest
import torch
from eager import MACHINE, STEPS, compiled_within, planned_within, same, same_dicts
from test_compiled_training import compiled_anew, plans  # noqa: F401
from test_processes import run as run_processes
from test_scaler import device, scalers  # noqa: F401
from test_twice import Handwritten
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

import spillway.torch
from spillway.torch import CaptureError

BUDGETS = [None, "100%", "50%", "min"]


class Gan:
    """As DCGAN trains: the generator's pictures serve both losses, and the second backward pass also writes
    gradients of the critic, which nobody uses."""

    def __init__(self, optimizer=torch.optim.Adam, **how):
        up = nn.Sequential(nn.ConvTranspose2d(6, 12, 4), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.1))
        generator = nn.Sequential(up, nn.ConvTranspose2d(12, 3, 4, 2, 1), nn.Tanh())
        down = nn.Sequential(nn.Conv2d(3, 12, 4, 2, 1), nn.BatchNorm2d(12), nn.LeakyReLU(0.2))
        critic = nn.Sequential(down, nn.Conv2d(12, 1, 4), nn.Flatten(0))
        self.models = nn.ModuleDict(dict(generator=generator, critic=critic))
        parts = critic, generator
        self.optimizers = [optimizer(part.parameters(), lr=lr, **how) for part, lr in zip(parts, (0.02, 0.01))]

    def batch(self):
        return torch.randn(4, 3, 8, 8), torch.randn(4, 6, 1, 1)

    def step(self, models, real, noise):
        of_critic, of_generator = self.optimizers
        generator, critic = models["generator"], models["critic"]
        critic.zero_grad()
        loss_real = F.softplus(-critic(real)).mean()
        loss_real.backward()
        fake = generator(noise)
        loss_fake = F.softplus(critic(fake.detach())).mean()
        loss_fake.backward()
        of_critic.step()
        generator.zero_grad()
        loss = F.softplus(-critic(fake)).mean()
        loss.backward()
        of_generator.step()
        return dict(critic=loss_real + loss_fake, generator=loss)


class ActorCritic:
    """A soft actor-critic with twin critics, targets that follow them, and a learned temperature, which only an
    optimizer has."""

    def __init__(self):
        def perceptron(n, m):
            return nn.Sequential(nn.Linear(n, 24), nn.ReLU(), nn.Linear(24, m))

        critics = nn.ModuleList([perceptron(8, 1), perceptron(8, 1)])
        targets = copy.deepcopy(critics).requires_grad_(False)
        self.models = nn.ModuleDict(dict(actor=perceptron(5, 6), critics=critics, targets=targets))
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.optimizers = (
            torch.optim.AdamW(self.models["actor"].parameters(), lr=0.01),
            torch.optim.Adam(critics.parameters(), lr=0.02, amsgrad=True),
            torch.optim.SGD([self.log_alpha], lr=0.1, momentum=0.9),
        )

    def batch(self):
        return dict(x=torch.randn(16, 5), action=torch.rand(16, 3), reward=torch.randn(16, 1), next=torch.randn(16, 5))

    def act(self, models, x):
        mean, log_std = models["actor"](x).chunk(2, 1)
        noise = torch.randn_like(mean)
        log_probability = (-0.5 * noise.square() - log_std).sum(1, keepdim=True)
        return torch.tanh(mean + log_std.exp() * noise), log_probability

    def step(self, models, batch):
        of_actor, of_critics, of_alpha = self.optimizers
        models["critics"].requires_grad_(True)
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            action, log_probability = self.act(models, batch["next"])
            values = [target(torch.cat([batch["next"], action], 1)) for target in models["targets"]]
            goal = batch["reward"] + 0.9 * (torch.min(*values) - alpha * log_probability)
        given = torch.cat([batch["x"], batch["action"]], 1)
        critic_loss = sum(F.mse_loss(critic(given), goal) for critic in models["critics"])
        of_critics.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(models["critics"].parameters(), 1.0)
        of_critics.step()

        models["critics"].requires_grad_(False)
        action, log_probability = self.act(models, batch["x"])
        value = torch.min(*[critic(torch.cat([batch["x"], action], 1)) for critic in models["critics"]])
        actor_loss = (alpha * log_probability - value).mean()
        of_actor.zero_grad()
        actor_loss.backward()
        of_actor.step()

        of_alpha.zero_grad()
        (-self.log_alpha * (log_probability.detach() - 3.0)).sum().backward()
        of_alpha.step()
        with torch.no_grad():
            for target, its in zip(models["targets"].parameters(), models["critics"].parameters()):
                target.lerp_(its, 0.1)
        return critic_loss.detach(), actor_loss.detach()


class Wasserstein(Gan):
    """Its critic steps three times for each step of the generator, with another optimizer."""

    def __init__(self):
        super().__init__(torch.optim.RMSprop, momentum=0.5)

    def step(self, models, real, noise):
        of_critic, of_generator = self.optimizers
        generator, critic = models["generator"], models["critic"]
        for part in noise.chunk(3):
            of_critic.zero_grad()
            with torch.no_grad():
                fake = generator(part)
            loss = critic(fake).mean() - critic(real).mean()
            loss.backward()
            of_critic.step()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-0.1, 0.1)
        of_generator.zero_grad()
        for p in critic.parameters():
            p.grad = None
        value = -critic(generator(noise)).mean()
        value.backward()
        of_generator.step()
        return loss, value

    def batch(self):
        return torch.randn(6, 3, 8, 8), torch.randn(6, 6, 1, 1)


class Divided(Gan):
    """One loss, whose gradients are for several optimizers: `capture` runs backward pass and steps."""

    def __init__(self):
        super().__init__()
        matrices = [p for p in self.models.parameters() if p.dim() > 1]
        others = [p for p in self.models.parameters() if p.dim() == 1]
        self.optimizers = [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(others, lr=0.01)]

    def loss(self, models, real, noise):
        fake = models["generator"](noise)
        return F.mse_loss(fake, real) + models["critic"](fake).square().mean()

    def step(self, models, *batch):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss(models, *batch)
        loss.backward()
        nn.utils.clip_grad_norm_([p for o in self.optimizers for g in o.param_groups for p in g["params"]], 0.5)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss


def fused():
    return Gan(fused=True)


def each():
    return Gan(foreach=False)


def twins(make, seed=7):
    """Returns two equal tasks."""
    found = []
    for _ in range(2):
        torch.manual_seed(seed)
        found.append(make())
    return found


def schedulers_of(task):
    return [torch.optim.lr_scheduler.ExponentialLR(o, rate) for o, rate in zip(task.optimizers, (0.9, 0.7))]


def run(task, data, step):
    """Trains with a schedule for each optimizer. Returns what the steps return."""
    schedulers, found = schedulers_of(task), []
    for batch in data:
        found.append([x.detach().clone() for x in tree_leaves(step(batch))])
        for scheduler in schedulers:
            scheduler.step()
    return found


def eagerly(task):
    return lambda batch: task.step(task.models, *batch) if isinstance(batch, tuple) else task.step(task.models, batch)


def check(eager, planned, expected, results):
    for k, pair in enumerate(zip(expected, results)):
        for a, b in zip(*pair):
            same(b, a, f"result {k}")
    same_dicts(planned.models.state_dict(), eager.models.state_dict(), "models")
    for a, b in zip(planned.optimizers, eager.optimizers):
        same_dicts(a.state_dict(), b.state_dict(), "optimizer")


def compare(make, budget, loss_fn="step", capture={}, **how):
    """Trains eagerly and within a plan, and compares all bits. Returns the task and the compiled step."""
    eager, planned = twins(make)
    data = [eager.batch() for _ in range(STEPS)]
    state = torch.get_rng_state()
    expected = run(eager, data, eagerly(eager))
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    loss_fn = getattr(planned, loss_fn)
    step = spillway.torch.capture(planned.models, loss_fn, planned.optimizers, data[0], **capture)
    train = compiled_within(step, budget, **how)
    results = run(planned, data, train)
    assert train.sync() == STEPS
    assert torch.equal(torch.get_rng_state(), after)
    check(eager, planned, expected, results)
    return planned, train


@pytest.mark.short
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("make", [Gan, fused, each, ActorCritic, Wasserstein])
def test_steps_that_loss_fn_runs_itself(make, budget):
    compare(make, budget)


@pytest.mark.short
@pytest.mark.parametrize("budget", BUDGETS)
def test_one_backward_pass_for_several_optimizers(budget):
    compare(Divided, budget, "loss", dict(clip_grad=0.5))


@pytest.mark.short
@pytest.mark.parametrize("scale", [2.0**16, 2.0**127])
@pytest.mark.parametrize("make", [Gan, fused])
def test_a_scaler_that_loss_fn_uses(make, scale):
    """One scaler serves both losses. It leaves out steps of both optimizers, and of one of them."""
    pair = scalers(scale)

    def scaled(k):
        class Scaled(type(make())):
            def __init__(self):
                super().__init__(fused=make is fused or None)

            def step(self, models, real, noise):
                scaler, (of_critic, of_generator) = pair[k], self.optimizers
                generator, critic = models["generator"], models["critic"]
                of_critic.zero_grad()
                fake = generator(noise)
                loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
                scaler.scale(loss).backward()
                scaler.unscale_(of_critic)
                nn.utils.clip_grad_norm_(critic.parameters(), 0.1)
                scaler.step(of_critic)
                of_generator.zero_grad()
                value = F.softplus(-critic(fake)).mean()
                scaler.scale(value).backward()
                scaler.step(of_generator)
                scaler.update()
                return loss, value

        return Scaled

    eager, planned = (twins(scaled(k))[0] for k in range(2))
    data = [eager.batch() for _ in range(7)]
    data[2][1].fill_(float("inf"))  # both losses use it
    data[4][0].fill_(float("nan"))  # only the critic's loss uses it
    state = torch.get_rng_state()
    expected = run(eager, data, eagerly(eager))
    torch.set_rng_state(state)
    step = spillway.torch.capture(planned.models, planned.step, planned.optimizers, data[0], scaler=pair[1])
    train = compiled_within(step, "50%")
    results = run(planned, data, train)
    train.sync()
    check(eager, planned, expected, results)
    assert pair[0].state_dict() == pair[1].state_dict()
    critic, generator = (next(iter(o.state.values()))["step"] for o in planned.optimizers)
    assert critic <= generator < 7 and (critic < generator or scale > 2.0**16)


@pytest.mark.usefixtures("fast_host")
@pytest.mark.parametrize("make", [Gan, ActorCritic])
def test_the_optimizers_on_the_host(make):
    _, train = compare(make, "50%", host="optimizer", settings=dict(host="all"))
    assert train.plan.host_ops


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("make", [Gan, fused, ActorCritic])
def test_on_a_device(make):
    _, train = compare(make, "50%")
    assert train._session.stream


def test_values_that_others_write_between_the_steps():
    """States are loaded, weights and settings are written, and a batch of another shape and an evaluation come
    between."""
    eager, planned = twins(Gan)
    data = [eager.batch() for _ in range(4)]
    step = spillway.torch.capture(planned.models, planned.step, planned.optimizers, data[0])
    train = step.compile(planned_within(step, "50%"), machine=MACHINE)
    saved = []
    for number, (real, noise) in enumerate([*data, *data]):
        if number == 2:
            real, noise = real[:3], noise[:3]
        for task in (eager, planned) if number >= 5 else ():
            task.optimizers[1].param_groups[0]["eps"] = 1e-3 * number
        state = torch.get_rng_state()
        expected = eager.step(eager.models, real, noise)
        torch.set_rng_state(state)
        results = train((real, noise))
        for name, value in expected.items():
            same(results[name], value.detach(), f"{name} {number}")
        if number == 3:
            torch.manual_seed(1)
            picture = train.evaluate(lambda models, noise: models["generator"](noise))(noise)
            torch.manual_seed(1)
            with torch.no_grad():
                same(picture, eager.models["generator"](noise), "picture")
        if number == 4:
            train.sync()
            saved = [copy.deepcopy(o.state_dict()) for o in planned.optimizers]
        for task in (eager, planned) if number == 5 else ():
            train.sync()
            task.optimizers[1].load_state_dict(copy.deepcopy(saved[1]))
            with torch.no_grad():
                task.models["critic"][1].weight.mul_(2)
        if number == 6:
            train.sync()
            train.close()
            train.load()
    train.sync()
    check(eager, planned, [], [])


def test_a_verification():
    for task in (Gan(), ActorCritic()):
        before = copy.deepcopy(task.models.state_dict())
        step = spillway.torch.capture(task.models, task.step, task.optimizers, task.batch(), verify=True)
        assert step.verify([task.batch()], plan=planned_within(step, "min")) == 1
        same_dicts(task.models.state_dict(), before, "models")
        for p in (p for o in task.optimizers for group in o.param_groups for p in group["params"]):
            assert p.grad is None and p.requires_grad


def test_a_step_with_one_optimizer_may_run_itself():
    def make():
        task = Gan()
        task.optimizers = task.optimizers[:1]
        return task

    def step(self, models, real, noise):
        self.optimizers[0].zero_grad()
        loss = models["critic"](real).square().mean()
        loss.backward()
        self.optimizers[0].step()
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gan, "step", step)
        compare(make, "50%")


def test_an_optimizer_that_replaces_its_tensors_twice():
    def make():
        task = Gan()
        task.optimizers = [Handwritten(task.models["critic"].parameters(), lambda: torch.tensor(0.0))]
        task.step = lambda models, *batch: twice(task, models, *batch)
        task.step(task.models, *task.batch())  # makes its states
        return task

    def twice(task, models, real, noise):
        found = []
        for part in real, models["generator"](noise).detach():
            task.optimizers[0].zero_grad()
            found.append(models["critic"](part).square().mean())
            found[-1].backward()
            task.optimizers[0].step()
        return tuple(found)

    compare(make, "50%")


def test_an_estimate():
    task = Gan()
    estimate = spillway.torch.estimate(task.models, task.step, task.optimizers, task.batch())
    assert not any(o.state for o in task.optimizers)
    step = spillway.torch.capture(task.models, task.step, task.optimizers, task.batch())
    tensors = [json.loads(graph.to_json())["tensors"] for graph in (estimate.graph, step.graph)]
    names = [{t["name"] for t in its if t["kind"] == "state"} for its in tensors]
    assert estimate.plans and names[0] == names[1] and "generator.1.weight.exp_avg" in names[0]


class Refused(Gan):
    """A step that does something else at one place."""

    def __init__(self, place, instead):
        super().__init__()
        self.instead = {place: instead}

    def at(self, place, what):
        return self.instead.get(place, what)()

    def step(self, models, real, noise):
        of_critic, of_generator = self.optimizers
        critic, generator = models["critic"], models["generator"]
        nothing = lambda: None
        self.at("begin", of_critic.zero_grad)
        loss = critic(real).square().mean()
        loss.backward()
        self.at("step", of_critic.step)
        of_generator.zero_grad()
        value = critic(generator(noise)).mean()
        value.backward()
        self.at("last step", of_generator.step)
        self.at("end", nothing)
        return loss, value


REFUSED = {
    "no zero_grad": ("begin", lambda task: None, r"`loss.backward\(\)`: uses the gradient of critic.1.weight that"),
    "zeros": ("begin", lambda task: task.optimizers[0].zero_grad(False), "`loss.backward.*: uses the gradient of"),
    "one step": ("last step", lambda task: None, r"loss_fn calls step\(\) of another .* not of optimizer 1 \(Adam\)"),
    "a closure": ("step", lambda task: task.optimizers[0].step(lambda: None), r"step\(\) with a closure cannot"),
    "a schedule": ("end", lambda task: task.schedulers[1].step(), r"sets lr of optimizer 1 .Adam.'s group 0, but"),
    "frozen": ("end", lambda task: task.models["critic"].requires_grad_(False), "a second step fails after what the"),
    "a setting": ("end", lambda task: task.optimizers[1].param_groups[0].update(eps=1.0), "sets eps of optimizer 1"),
    "another optimizer": ("end", lambda task: task.other.step(), "of SGD, which the capture does not know: give"),
}


@pytest.mark.short
def test_a_schedule_of_rates_that_are_tensors_steps_outside():
    task = Gan(fused=True)

    def loss_fn(models, real, noise):
        losses = task.step(models, real, noise)
        task.optimizers[1].param_groups[0]["lr"].fill_(0.5)
        return losses

    with pytest.raises(CaptureError, match="sets lr of optimizer 1"):
        spillway.torch.capture(task.models, loss_fn, task.optimizers, task.batch())


@pytest.mark.short
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_step_may_not_do(name):
    place, instead, message = REFUSED[name]
    task = Refused(place, lambda: instead(task))
    task.schedulers = schedulers_of(task)
    task.other = torch.optim.SGD(task.models.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match=message):
        spillway.torch.capture(task.models, task.step, task.optimizers, task.batch())
    assert not any(o.state for o in task.optimizers)
    assert [o.param_groups[0]["lr"] for o in task.optimizers] == [0.02, 0.01]


def test_which_arguments_do_not_go_together():
    task = Gan()
    given = task.models, task.step, task.optimizers, task.batch()
    scaler = scalers(1.0)[0]
    with pytest.raises(CaptureError, match="clip there too, and leave out clip_grad"):
        spillway.torch.capture(*given, clip_grad=1.0)
    with pytest.raises(CaptureError, match=r"not the scaler: call scaler.scale\(loss\)"):
        spillway.torch.capture(*given, scaler=scaler)

    def scales(models, real, noise):
        return scaler.scale(models["critic"](real).mean())

    with pytest.raises(CaptureError, match="loss_fn scales the loss, and so does"):
        spillway.torch.capture(task.models, scales, task.optimizers, task.batch(), scaler=scaler)
    with pytest.raises(CaptureError, match="one optimizer is given several times"):
        spillway.torch.capture(task.models, task.step, task.optimizers[:1] * 2, task.batch())
    with pytest.raises(CaptureError, match="of type dict: give one; capture.* takes a list"):
        spillway.torch.capture(task.models, task.step, dict(a=task.optimizers[0]), task.batch())


def test_parameters_outside_of_the_model_are_named_with_their_optimizer():
    model, scales = nn.Linear(4, 4), [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters()), torch.optim.SGD(scales)]

    def loss_fn(model, batch):
        return (model(batch) * scales[0] * scales[1]).square().mean()

    step = spillway.torch.capture(model, loss_fn, optimizers, torch.ones(2, 4))
    names = [s.name for s in step.storages if s.name.startswith("parameter ")]
    assert names == [f"parameter {n} of optimizer 1 (SGD)'s group 0" for n in range(2)]


@pytest.mark.short
def test_the_example_of_the_page():
    page = (Path(__file__).parents[3] / "docs" / "pytorch-training.md").read_text()
    section = page.split("\n### Several optimizers\n")[1].split("\n### ")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ") or not line)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        generator, critic = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 8)), nn.Linear(8, 1)
        of_critic, of_generator = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (critic, generator))
        names = dict(generator=generator, critic=critic, of_critic=of_critic, of_generator=of_generator)
        names |= dict(torch=torch, spillway=spillway, softplus=F.softplus, real=torch.randn(5, 8))
        names["noise"] = torch.randn(5, 4)
        exec(code, names)
        found.append(names)
    eager, planned = found
    train = compiled_within(planned["step"], "50%")
    for _ in range(3):
        batch = eager["real"], eager["noise"]
        for a, b in zip(eager["gan"](eager["models"], *batch), train(batch)):
            same(b, a, "loss")
    train.sync()
    same_dicts(planned["models"].state_dict(), eager["models"].state_dict(), "models")


def check_usual_loop(tasks, models, joined):
    """Trains both tasks in the usual loop. The second one has compiled models, and its first optimizers join."""
    eager, planned = tasks
    data = [eager.batch() for _ in range(3)]
    state = torch.get_rng_state()
    expected = run(eager, data, eagerly(eager))
    torch.set_rng_state(state)
    for model in models:
        model.compile(backend="spillway", options=dict(budget="min"))
    optimizers = planned.optimizers
    planned.optimizers = [*map(spillway.torch.optimizer, optimizers[:joined]), *optimizers[joined:]]
    check(eager, planned, expected, run(planned, data, eagerly(planned)))


def test_the_usual_loop(plans):  # noqa: F811
    """With `torch.compile`, each model has a plan with its optimizer."""
    tasks = twins(Gan)
    check_usual_loop(tasks, tasks[1].models.values(), joined=2)
    assert plans


@pytest.mark.short
@pytest.mark.parametrize("are_given", [False, True])
def test_optimizers_that_step_in_the_backward_pass_are_refused(are_given):
    model = nn.Linear(4, 4)
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    for p, optimizer in zip(model.parameters(), optimizers):
        p.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    given = optimizers if are_given else torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match="the step of SGD in a hook of the backward pass: give one optimizer all"):
        spillway.torch.capture(model, lambda model, x: model(x).sum(), given, torch.randn(3, 4))


def processes(process):
    (eager, planned), (sharded, _) = twins(Divided), twins(Divided)
    for task in (eager, planned, sharded):
        task.models["generator"][0][3].p = 0.0
    group = distributed.group.WORLD
    torch.manual_seed(process)
    data = [eager.batch() for _ in range(4)]

    def train_eagerly(task):
        found = []
        for batch in data:
            for optimizer in task.optimizers:
                optimizer.zero_grad()
            loss = task.loss(task.models, *batch)
            loss.backward()
            for p in task.models.parameters():
                p.grad.mul_(0.5)
                distributed.all_reduce(p.grad)
            nn.utils.clip_grad_norm_([p for o in task.optimizers for g in o.param_groups for p in g["params"]], 0.5)
            for optimizer in task.optimizers:
                optimizer.step()
            found.append(loss.detach())
        return found

    expected = train_eagerly(eager)
    for task, how in ((planned, {}), (sharded, dict(shard=True))):
        how = dict(process_group=group, clip_grad=0.5) | how
        step = spillway.torch.capture(task.models, task.loss, task.optimizers, data[0], **how)
        train = compiled_within(step, "50%")
        for batch, loss in zip(data, expected):
            if how.get("shard"):
                assert torch.allclose(train(batch), loss)
            else:
                same(train(batch), loss, "loss")
        train.sync()
    same_dicts(planned.models.state_dict(), eager.models.state_dict(), "models")
    with pytest.raises(CaptureError, match=r"loss_fn calls step\(\) itself, but .* since the step is sharded"):
        spillway.torch.capture(eager.models, eager.step, eager.optimizers, data[0], process_group=group, shard=True)


def passes_of_processes(process):
    """`DistributedDataParallel` averages gradients in each backward pass."""
    for make in (Gan, fused, Wasserstein):
        eager, planned = twins(make, seed=7 + process)
        parallel = {n: DistributedDataParallel(m, broadcast_buffers=False) for n, m in eager.models.items()}
        data = [eager.batch() for _ in range(4)]
        state = torch.get_rng_state()
        expected = run(eager, data, lambda batch, eager=eager, parallel=parallel: eager.step(parallel, *batch))
        torch.set_rng_state(state)
        group = distributed.group.WORLD
        with mock.patch("spillway.torch.processes.FIRST_BUCKET_BYTES", 4096 if make is fused else 1 << 20):
            step = spillway.torch.capture(
                planned.models, planned.step, planned.optimizers, data[0], process_group=group
            )
        collectives = sum(op.name.startswith("all_reduce_") for op in step.operations)
        assert collectives > 3 if make is fused else collectives == (4 if make is Wasserstein else 3)
        train = compiled_within(step, "50%")
        results = run(planned, data, train)
        train.sync()
        check(eager, planned, expected, results)


@pytest.mark.parametrize("train", [processes, passes_of_processes])
def test_several_processes(train, tmp_path):
    run_processes(train, 2, tmp_path)


class Orthogonalised(Divided):
    """Matrices are trained by Muon, and all others by AdamW."""

    def __init__(self):
        super().__init__()
        self.models = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 8))
        matrices = [p for p in self.models.parameters() if p.dim() == 2]
        others = [p for p in self.models.parameters() if p.dim() == 1]
        self.optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]

    def loss(self, model, x, y):
        return F.mse_loss(model(x), y)

    def batch(self):
        return torch.randn(16, 8), torch.randn(16, 8)


def test_muon_beside_another_optimizer():
    compare(Orthogonalised, "50%", "loss", dict(clip_grad=0.5))
