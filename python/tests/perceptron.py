"""A perceptron that learns to reverse its input, in plain Python and as a graph with kernels."""

import ctypes
from array import array

import spillway

WIDTH = 32
LAYERS = 6
RATE = 0.01
FLOAT_BYTES = 4


def noise(count, seed):
    """Returns numbers between -1 and 1 that look random."""
    state = seed * 2654435761 + 1
    numbers = array("f")
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        numbers.append((state >> 40) / 2**23 - 1)
    return numbers


def first_weights(layer):
    return array("f", [0.2 * w for w in noise(WIDTH * WIDTH, layer + 1)])


def batch(iteration):
    return noise(WIDTH, 1000 + iteration % 4)


def forward(x, weights, y):
    for row in range(WIDTH):
        y[row] = sum(weights[row * WIDTH + i] * x[i] for i in range(WIDTH))


def difference(y, x, error):
    for i in range(WIDTH):
        error[i] = y[i] - x[WIDTH - 1 - i]


def backward(error, x, weights, back):
    for i in range(WIDTH):
        back[i] = sum(weights[row * WIDTH + i] * error[row] for row in range(WIDTH))
    for row in range(WIDTH):
        for i in range(WIDTH):
            weights[row * WIDTH + i] -= RATE * error[row] * x[i]


def train_plainly(iterations):
    """Returns the weights after training without a plan."""
    weights = [first_weights(layer) for layer in range(LAYERS)]
    for iteration in range(1, iterations + 1):
        activations = [batch(iteration)] + [noise(WIDTH, 0) for _ in range(LAYERS)]
        for layer in range(LAYERS):
            forward(activations[layer], weights[layer], activations[layer + 1])
        error, back = noise(WIDTH, 0), noise(WIDTH, 0)
        difference(activations[LAYERS], activations[0], error)
        for layer in reversed(range(LAYERS)):
            backward(error, activations[layer], weights[layer], back)
            error, back = back, error
    return weights


class Perceptron:
    """The graph, and the kernels of its ops."""

    def __init__(self):
        graph = self.graph = spillway.Graph("perceptron")
        wide, square = WIDTH * FLOAT_BYTES, WIDTH * WIDTH * FLOAT_BYTES
        self.x = graph.input("x", wide)
        self.weights = [graph.state(f"weights {n}", square) for n in range(LAYERS)]
        activations = [self.x] + [graph.temporary(f"activation {n}", wide) for n in range(LAYERS)]
        self.functions, self.iterations = [], set()
        for n in range(LAYERS):
            x, w, y = activations[n], self.weights[n], activations[n + 1]
            graph.op(f"forward {n}", 20_000, [x, w], [y])
            self.functions.append(lambda reads, writes: forward(*reads, *writes))
        error = graph.temporary("error", wide)
        graph.op("loss", 1_000, [activations[-1], self.x], [error])
        self.functions.append(lambda reads, writes: difference(*reads, *writes))
        for n in reversed(range(LAYERS)):
            back = graph.temporary(f"gradient {n}", wide)
            reads, writes = [error, activations[n], self.weights[n]], [self.weights[n], back]
            graph.op(f"backward {n}", 40_000, reads, writes)
            self.functions.append(lambda reads, writes: backward(*reads, writes[1]))
            error = back

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        assert not is_repeat and workspace is None
        self.iterations.add(iteration)
        self.functions[op](list(map(floats, reads)), list(map(floats, writes)))

    def fill_input(self, tensor, iteration, memory):
        assert tensor == self.x and memory.bytes == WIDTH * FLOAT_BYTES
        memory.write(batch(iteration))

    def train(self, plan, iterations, session=spillway.Session):
        """Returns the weights after training within a plan, and the size of the device."""
        with session(plan, self) as session:
            for layer, tensor in enumerate(self.weights):
                session.write_state(tensor, first_weights(layer))
            for _ in range(iterations):
                session.step()
            weights = [noise(WIDTH * WIDTH, 0) for _ in self.weights]
            for tensor, into in zip(self.weights, weights):
                session.read_state(tensor, into)
            return weights, session.device_bytes


def floats(memory):
    """Returns the floats in memory, also in that of the emulated device."""
    return (ctypes.c_float * (memory.bytes // FLOAT_BYTES)).from_address(memory.address)


def machine(chunk_bytes=4096):
    """Returns a machine with slow links, so that plans have something to decide."""
    return spillway.Machine("host", 1 << 20, 1 << 24, chunk_bytes, 10**9, 10**9)
