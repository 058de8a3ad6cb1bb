"""hooks.py SOURCE: inserts Spillway's hooks into a source tree of stable-diffusion.cpp.

Each hook names the text behind which it goes, or which it replaces. The text must occur exactly as often
as told, so that another version of the runtime is refused and never patched in the wrong place."""

import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).parent
HEADER = "ggml_extend.hpp"

# (what to find, how often, what to put behind it)
INSERTED = [
    (r'#include "ggml_graph_cut\.h"\n', 1, '#include "spillway_residency.h"\n'),
    (r"PlanCache graph_cut_plan_cache_;\n", 1, "    spillway::Residency spillway_;\n"),
    (r"void free_params_buffer\(\) \{\n", 1, "        spillway_.release();\n"),
    (r"void free_compute_buffer\(\) \{\n", 1, "        spillway_.release();\n"),
    (r"void restore_partial_params\(\) \{\n", 1, "        spillway_.done();\n"),
    (r"bool offload_partial_params\(.*\) \{\n", 1, "        if (spillway_.bring(tensors)) return true;\n"),
    (r"get_size\(partial_runtime_params_buffer\);\n", 1, "        spillway_.brought(tensors);\n"),
    (r"if \(should_use_graph_cut_segmented_compute\(plan\)\) \{\n", 1,
     "                if (!spillway_.begin(gf, plan, max_graph_vram_bytes, runtime_backend, get_desc(), "
     "weight_adapter != nullptr)) {\n"
     "                    free_compute_ctx();\n"
     "                    return std::nullopt;\n"
     "                }\n"
     "                struct SpillwayEnd { spillway::Residency& it; ~SpillwayEnd() { it.end(); } } "
     "spillway_end{spillway_};\n"),
]

# (what to find, how often, what to put in its place)
REPLACED = [
    # Segments are the units of a plan, so they are not merged.
    (r"(&graph_cut_plan_cache_,\s*)max_graph_vram_bytes,", 1,
     r"\1spillway::is_on() ? 0 : max_graph_vram_bytes,"),
    # The processor may be a device.
    (r"!ggml_backend_is_cpu\(runtime_backend\)(;| && offload_params_to_cpu)", 3,
     r"!spillway::shares_memory(runtime_backend)\1"),
]


def write(path, text):
    """Writes a file unless it has this text, so that nothing is built again for nothing."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main(source):
    header = source / HEADER
    original = source / f"{HEADER}.original"
    if not original.exists():
        shutil.copy(header, original)
    text = original.read_text()
    hooks = [(find, count, rf"\g<0>{put}") for find, count, put in INSERTED] + REPLACED
    for find, count, put in hooks:
        text, found = re.subn(find, put, text)
        if found != count:
            sys.exit(f"{header}: {found} places match {find!r}, not {count}: this version is not known")
    for ours in HERE.glob("spillway_residency.*"):
        write(source / ours.name, ours.read_text())
    write(header, text)
    print(f"{len(hooks)} hooks in {header.name}")


main(pathlib.Path(sys.argv[1]) / "src")
