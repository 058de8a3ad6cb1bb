"""compare.py cpu|vulkan PROGRAM MODEL: images, bytes moved and times of one prompt, by who decides what stays."""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

STEPS = 8
REPEATS = {"cpu": 2, "vulkan": 1}  # times of a software driver say nothing about a GPU
# Of sampling steps, the first is measured by the planner, and the second has the first upload of what stays.
WARMUP = 2
MIB = 1 << 20
RULES = {
    "runtime": {},  # version 0.4.7: all weights of merged segments come before these run, one after the other
    "prefix": {"SPILLWAY_RESIDENCY": "prefix"},
    "spillway": {"SPILLWAY_RESIDENCY": "plan"},
}


def generate(program, model, image, options, settings):
    """Runs the program. Returns the image's bytes, what the transformer reported, and the text of all."""
    command = [program, "--diffusion-model", model / "flux.safetensors", "--clip_l", model / "clip_l.safetensors",
               "--taesd", model / "taef1.safetensors", "-p", "a red fox", "-W", "64", "-H", "64", "--cfg-scale", "1",
               "--steps", str(STEPS), "--sampling-method", "euler", "-s", "1", "-t", "1", "-o", image, *options]
    image.unlink(missing_ok=True)
    process = subprocess.run(command, env={**os.environ, **settings}, text=True, errors="replace",
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = re.findall(r"spillway: (.*)", process.stdout)
    if process.returncode != 0 or not image.exists():
        return None, None, "; ".join(line for line in lines if not line.startswith("{")) or process.stdout[-500:]
    reports = [json.loads(line) for line in lines if line.startswith("{")]
    report = next((report for report in reports if report["runner"] == "flux"), None)
    return image.read_bytes(), report, process.stdout


def main(device, program, model):
    model = pathlib.Path(model)
    image = model / "image.png"
    settings = {"SPILLWAY_PROCESSOR_AS_DEVICE": "1"} if device == "cpu" else {}
    # Links in bytes a second, None for the memory's own speed, with budgets in MiB.
    cells = {None: [64, 128], 150_000_000: [48, 64, 96, 128], 75_000_000: [96]} if device == "cpu" else {None: [8, 10]}
    print("all weights on the device ...", file=sys.stderr)
    expected, _, text = generate(program, model, image, [], {})
    if expected is None:
        sys.exit(f"the runtime failed: {text}")
    seconds = float(re.search(r"sampling completed, taking ([\d.]+)s", text)[1])
    weights = (model / "flux.safetensors").stat().st_size
    print(f"{device}: {weights / MIB:.0f} MiB of weights, {STEPS} steps; all weights on the device: "
          f"{1000 * seconds / STEPS:.0f} ms a step\n")
    print("| link | budget | rule | weights on the device | moved | step | predicted | image |")
    print("|--:|--:|---|--:|--:|--:|--:|---|", flush=True)
    differ = False
    for link, budgets in cells.items():
        paced = {"SPILLWAY_LINK_BYTES_PER_S": str(link)} if link else {}
        for budget in budgets:
            # In turns, since other programs may use the machine: the run with the shortest step counts.
            runs = {rule: [] for rule in RULES}
            for rule in list(RULES) * REPEATS[device]:
                start = time.monotonic()
                options = ["--offload-to-cpu", "--max-vram", str(budget / 1024)]
                runs[rule].append(generate(program, model, image, options, {**settings, **paced, **RULES[rule]}))
                print(f"{rule} in {budget} MiB: {time.monotonic() - start:.0f} s", file=sys.stderr)
            for rule, done in runs.items():
                row = f"| {f'{link // 1_000_000} MB/s' if link else 'memory'} | {budget} MiB | {rule} |"
                refusal = next((text for given, _, text in done if given is None), None)
                if refusal is not None:
                    print(f"{row} | | | | {refusal.strip()} |", flush=True)
                    continue
                if any(report is None for _, report, _ in done):
                    sys.exit("the runtime did not cut the graph into segments")
                same = all(given == expected for given, _, _ in done)
                differ |= not same
                steps = [statistics.median(report["iterations_ns"][WARMUP:]) for _, report, _ in done]
                report = done[steps.index(min(steps))][1]
                predicted = f"{report['planned_ns'] / 1e6:.0f} ms" if report["planned_ns"] else ""
                print(f"{row} {report['weights_bytes'] / MIB:.0f} MiB | {report['uploaded_bytes'] / 1e6:.0f} MB "
                      f"| {min(steps) / 1e6:.0f} ms | {predicted} | {'same' if same else 'DIFFERS'} |", flush=True)
    if differ:
        sys.exit("an image differs from that of a run with all weights on the device")


main(*sys.argv[1:])
