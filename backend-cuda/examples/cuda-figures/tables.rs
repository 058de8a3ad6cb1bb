//! What mapping and copying cost, and the machine file that follows.

use backend_cuda::{Cuda, Mapping, Measured, Options};
use workloads::format;

/// The largest chunks whose mapping is measured.
const MOST_CHUNK_BYTES: u64 = 128 << 20;
/// Chunks that are mapped at once.
const CHUNKS: u64 = 8;

/// Mapping by the size of chunks.
pub(crate) fn mapping(cuda: &Cuda, measured: &Measured, ordinal: usize) -> Result<(), String> {
    println!("Time of the host for a chunk, of eight that get access together, while the device");
    println!("is idle and while it computes:\n");
    println!("| chunk | map | set access | unmap | map | set access | unmap |");
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    let mut mapping = measured.mapping;
    loop {
        let Mapping { chunk_bytes, idle_ns: [a, b, c], busy_ns: [d, e, f] } = mapping;
        println!(
            "| {} KiB | {a:.0} ns | {b:.0} ns | {c:.0} ns | {d:.0} ns | {e:.0} ns | {f:.0} ns |",
            chunk_bytes >> 10
        );
        let chunk_bytes = 4 * chunk_bytes;
        if chunk_bytes > MOST_CHUNK_BYTES.min(measured.machine.device_bytes / CHUNKS) {
            break;
        }
        let options = Options { ordinal, chunk_bytes: Some(chunk_bytes) };
        mapping = cuda.measure_mapping(&options)?;
    }
    if measured.mapping.waits_for_work() {
        println!("\nThe driver waits for the device's work when something is mapped or unmapped.");
    }
    println!();
    Ok(())
}

/// Copies by size.
pub(crate) fn copies(measured: &Measured) {
    println!("GB/s of copies from and to pinned memory that were enqueued ahead, of each");
    println!("direction: one alone, both, and both while memory is filled:\n");
    println!("| size | up | down | up, both | down, both | up, busy | down, busy |");
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    for copies in &measured.copies {
        let speeds = copies.ns.as_flattened().iter();
        let speed = |ns: &Option<f64>| match ns {
            Some(ns) => format!(" {:.2} |", copies.bytes as f64 / ns),
            None => " – |".to_owned(),
        };
        let speeds: String = speeds.map(speed).collect();
        println!("| {} KiB |{speeds}", copies.bytes >> 10);
    }
    if measured.copies.iter().any(|copies| copies.ns.as_flattened().contains(&None)) {
        println!("\nWhere there is no figure, the host did not enqueue the copies ahead, or what");
        println!("went on besides ended before them.");
    }
    println!("\nA copy takes a latency, and its bytes over a speed:\n");
    println!("| | up | down |");
    println!("|---|--:|--:|");
    let alone = Some(measured.alone);
    for (links, name) in [(alone, "alone"), (measured.together, "both")] {
        let Some(links) = links else { continue };
        let [up, down] = links.map(|link| {
            format!("{:.2} GB/s, {:.1} µs", link.bytes_per_s / 1e9, link.latency_ns / 1e3)
        });
        println!("| {name} | {up} | {down} |");
    }
    let Some(together) = measured.together else {
        println!("\nCopies in both directions at once have no figure. The machine has the speeds");
        println!("of one direction alone: predictions may be optimistic.\n");
        return;
    };
    let slower = |way: usize| measured.alone[way].bytes_per_s / together[way].bytes_per_s - 1.0;
    let [up, down] = [0, 1].map(|way| 100.0 * slower(way));
    println!(
        "\nWhile both directions are used, copies up take {up:+.1} % of their time more, and \
         copies down {down:+.1} %. Plans are predicted with these speeds: they wait for links \
         that are both in use. A plan that copies in one direction for a time may be faster.\n"
    );
}

/// The machine file.
pub(crate) fn machine(measured: &Measured) {
    let machine = measured.named(None);
    println!("The machine that plans are made for:\n");
    println!("    {}\n", String::from_utf8_lossy(&format::write_machine(&machine)).trim_end());
}
