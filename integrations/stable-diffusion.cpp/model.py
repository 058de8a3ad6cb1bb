"""model.py FOLDER WIDTH: writes a small Flux model with random weights: transformer, CLIP-L, tiny autoencoder.

The runtime reads width and depth of the transformer from the file. Those of CLIP-L are fixed."""

import json
import pathlib
import sys

import numpy

HEAD, DOUBLE_BLOCKS, SINGLE_BLOCKS = 128, 4, 12


def write(path, shapes, rng):
    """Writes a file in the format safetensors, with values that keep activations about as large as they are."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            if len(shape) > 1:
                values = rng.standard_normal(shape, dtype=numpy.float32) * numpy.prod(shape[1:]) ** -0.5
            elif "norm" in name and not name.endswith("bias"):
                values = numpy.ones(shape)
            elif shape == [3]:
                values = numpy.full(shape, 0.5)  # the colours: grey, so that few are cut off
            else:
                values = rng.standard_normal(shape) * 0.02
            file.write(values.astype(numpy.float16).tobytes())
    print(f"{path.name}: {at / 1e6:.0f} MB")


def linear(shapes, name, outputs, *inputs, bias=True):
    shapes[f"{name}.weight"] = [outputs, *inputs]
    if bias:
        shapes[f"{name}.bias"] = [outputs]


def flux(w):
    shapes = {}
    linear(shapes, "img_in", w, 64)
    linear(shapes, "txt_in", w, 4096)
    for name, inputs in [("time_in", 256), ("vector_in", 768)]:
        linear(shapes, f"{name}.in_layer", w, inputs)
        linear(shapes, f"{name}.out_layer", w, w)
    for i in range(DOUBLE_BLOCKS):
        for side in ["img", "txt"]:
            block = f"double_blocks.{i}.{side}"
            linear(shapes, f"{block}_mod.lin", 6 * w, w)
            linear(shapes, f"{block}_attn.qkv", 3 * w, w)
            linear(shapes, f"{block}_attn.proj", w, w)
            shapes[f"{block}_attn.norm.query_norm.scale"] = [HEAD]
            shapes[f"{block}_attn.norm.key_norm.scale"] = [HEAD]
            linear(shapes, f"{block}_mlp.0", 4 * w, w)
            linear(shapes, f"{block}_mlp.2", w, 4 * w)
    for i in range(SINGLE_BLOCKS):
        block = f"single_blocks.{i}"
        linear(shapes, f"{block}.linear1", 7 * w, w)
        linear(shapes, f"{block}.linear2", w, 5 * w)
        linear(shapes, f"{block}.modulation.lin", 3 * w, w)
        shapes[f"{block}.norm.query_norm.scale"] = [HEAD]
        shapes[f"{block}.norm.key_norm.scale"] = [HEAD]
    linear(shapes, "final_layer.adaLN_modulation.1", 2 * w, w)
    linear(shapes, "final_layer.linear", 64, w)
    return shapes


def clip():
    shapes, w = {}, 768
    shapes["text_model.embeddings.token_embedding.weight"] = [49408, w]
    shapes["text_model.embeddings.position_embedding.weight"] = [77, w]
    for i in range(12):
        layer = f"text_model.encoder.layers.{i}"
        for projection in "qkv":
            linear(shapes, f"{layer}.self_attn.{projection}_proj", w, w)
        linear(shapes, f"{layer}.self_attn.out_proj", w, w)
        linear(shapes, f"{layer}.mlp.fc1", 4 * w, w)
        linear(shapes, f"{layer}.mlp.fc2", w, 4 * w)
        for norm in ["layer_norm1", "layer_norm2"]:
            linear(shapes, f"{layer}.{norm}", w)
    linear(shapes, "text_model.final_layer_norm", w)
    return shapes


def autoencoder():
    """The decoder: four levels of blocks of three convolutions, with an upsampling before each but the first."""
    shapes, w = {}, 64
    conv = lambda at, outputs, inputs, bias=True: linear(
        shapes, f"decoder.layers.{at}", outputs, inputs, 3, 3, bias=bias)
    conv(0, w, 16)
    at = 2
    for blocks in [3, 3, 3, 1]:
        for _ in range(blocks):
            for layer in [0, 2, 4]:
                conv(f"{at}.conv.{layer}", w, w)
            at += 1
        if blocks == 3:
            conv(at + 1, w, w, bias=False)
            at += 2
    conv(at, 3, w)
    return shapes


def main(folder, width):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng(1)
    for name, shapes in [("flux", flux(int(width))), ("clip_l", clip()), ("taef1", autoencoder())]:
        write(folder / f"{name}.safetensors", shapes, rng)


main(*sys.argv[1:])
