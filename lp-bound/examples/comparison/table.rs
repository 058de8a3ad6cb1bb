//! The comparison in Markdown.

use crate::cells::{COLUMNS, Cell, Planned};
use std::fmt::Write;

const HEAD: &str = "\
# How close `auto` is to the bound

This page is written by

<!-- not run: it measures the whole page -->

    cargo run --release -p spillway-lp-bound --example comparison -- -o docs/research/comparison.md

This program makes every plan below, proves each plan safe, and reads the bounds from
[bounds.json](bounds.json). With the feature `highs`, it solves missing bounds with HiGHS and adds them:
`lp-bound/with-highs cargo run --release -p spillway-lp-bound --features highs --example comparison`.
`--graphs`, `--machines` and `--budgets` select cells. `--folder` names the folder of the graph files.

- *Budget* is a percentage of the in-core need. `min` is the smallest budget for which `auto` finds
  a plan. † marks a budget of less than twice the need of the largest op. The tables leave out budgets
  that no plan meets. `in-core` has no column, since its plans fit none of these budgets.
- All other figures are periods divided by compute.
- Each op runs once: *auto* is `auto` with `--set repeats=no`. [repeats.md](repeats.md) has plans
  that launch ops again.
- *Bound* is the linear program of [bounds.md](bounds.md) for the given order of the ops, with
  pages. It holds for plans that keep this order, run each op once, and keep all tensors of at least
  a page in pools of pages. No such plan has a shorter period. No plan reaches some of these bounds,
  since the linear program ignores latency and moves single bytes.
- *Gap* says how far the period to its left is above the bound.
- *auto* may run the ops in another order. Its period can then be below the bound.
- `auto` is never slower with more memory: it reuses the plan for a smaller budget if that plan is
  shorter.
";

const TAIL: &str = "
## What holds `auto` back in the given order

These figures come from the timelines of `plan --trace` and from the linear program. In the column
*with latency*, the linear program charges each byte its share of one latency per tensor. In the column
*choice fixed*, it uses the same choice of gaps as a plan. The column *both* combines the two. If
`auto` tries more than 128 lists by default, its plan here is made with `--set effort=128`.

| work | GB/s | budget | bound | with latency | choice fixed | both | auto |
|---|--:|--:|--:|--:|--:|--:|--:|
| `linear_et` | 12 | 75 % | 1.142 | 1.157 | 1.163 | 1.185 | 1.250 |
| `resnet50_et` | 12 | 75 % | 1.192 | 1.193 | 1.194 | 1.202 | 1.232 |
| `resnet50_et` | 12 | 50 % | 2.731 | 2.737 | 2.787 | 2.810 | 2.837 |
| `resnet50_et` | 12 | 25 % | 4.319 | 4.331 | 4.379 | 4.409 | 4.430 |
| `resnet50_et` | 50 | 25 % | 1.219 | 1.228 | 1.242 | 1.264 | 1.301 |
| `resnet50:batch=64` | 12 | 75 % | 1.294 | 1.298 | 1.328 | 1.334 | 1.354 |
| `resnet50:batch=64,mode=inference` | 12 | 75 % | 1.415 | 1.416 | 1.474 | 1.474 | 1.489 |
| `linear_et` | 50 | min | 1.739 | 1.905 | 1.804 | 1.968 | 2.410 |

- *Choice of gaps.* This choice costs most when memory is short. The linear program moves more bytes
  than `auto` moves, but pays less for them, since more bytes cross both links at once. At 50 % and
  12 GB/s, it keeps 65 MB of the weights of `resnet50_et` on the host, from the change between the
  forward and the backward pass until their update. `auto` keeps 10 MB there. The downloads of these
  weights run at the end of the iteration, at the same time as uploads, and free memory for uploads at
  the change between the passes. Both links are busy together for 6 % of the linear program's period, and
  for less than 2 % of the period of `auto`'s plan. `auto` estimates the cost of a link near the ends of a
  gap from one list. It does not see that such a download may run long before the gap.
- *Latency.* Most transfers are small tensors, or last pages with few bytes. At 75 % and 12 GB/s, the
  latencies of the 330 transfers of `resnet50_et` take 3.2 % of the period.
- *Pace.* The difference between the last two columns is the cost of the pace. Between the forward and
  the backward pass, uploads wait for memory while downloads run. An op that needs memory waits for a
  whole segment of a download.
- *Few pages.* The tensors of `linear_et` have one or two pages. The plan rounds amounts up to pages,
  and an op waits for the whole last page that it needs.
- *Minimum.* One op takes the whole pool, so nothing can be prefetched before this op ends.
";

/// The whole page, from the works to the gaps.
pub(crate) fn render(cells: &[Cell]) -> String {
    let mut text = HEAD.to_owned() + "\n" + &works(cells);
    for cells in cells.chunk_by(|one, other| one.machine == other.machine) {
        let gigabytes = cells[0].link_bytes_per_s as f64 / 1e9;
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n## {gigabytes} GB/s each way (`{}`)\n", cells[0].machine);
        text += &periods(cells);
    }
    text + "\n## Gaps\n\n" + &gaps(cells) + TAIL
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    cells.into_iter().fold(String::new(), |row, cell| row + "| " + &cell + " ") + "|\n"
}

/// A table whose first columns hold words and whose other columns hold numbers.
fn table(words: usize, head: &[&str], rows: impl IntoIterator<Item = String>) -> String {
    let rule = (0..head.len()).map(|at| if at < words { "|---" } else { "|--:" });
    let head = row(head.iter().map(|&title| title.to_owned()));
    head + &rule.collect::<String>() + "|\n" + &rows.into_iter().collect::<String>()
}

fn works(cells: &[Cell]) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for cell in cells {
        if shown.contains(&cell.graph.as_str()) {
            continue;
        }
        shown.push(&cell.graph);
        let megabytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
        rows.push(row([
            format!("`{}`", cell.graph),
            cell.ops.to_string(),
            format!("{:.1}", cell.compute_ns as f64 / 1e6),
            megabytes(cell.in_core_peak_bytes),
            megabytes(cell.largest_op_bytes),
        ]));
    }
    table(1, &["work", "ops", "compute, ms", "in-core, MB", "largest op, MB"], rows)
}

/// The cells of one machine.
fn periods(cells: &[Cell]) -> String {
    let mut head = vec!["work", "budget", "bound"];
    for column in &COLUMNS {
        head.push(column.title);
        head.extend(column.gap.then_some("gap"));
    }
    let mut rows = Vec::new();
    for cells in cells.chunk_by(|one, other| one.graph == other.graph) {
        for (at, cell) in cells.iter().enumerate() {
            let graph = if at == 0 { format!("`{}`", cell.graph) } else { String::new() };
            let mut line = vec![graph, budget(cell), relative(cell, cell.lp_bound_ns)];
            for (column, plan) in COLUMNS.iter().zip(&cell.plans) {
                let none = || "–".to_owned();
                line.push(plan.map_or_else(none, |plan| relative(cell, plan.period_ns)));
                if column.gap {
                    line.push(plan.map_or_else(none, |plan| percent(gap(cell, plan))));
                }
            }
            rows.push(row(line));
        }
    }
    table(1, &head, rows)
}

fn budget(cell: &Cell) -> String {
    let label = cell.percent.map_or_else(|| "min".to_owned(), |percent| format!("{percent} %"));
    if is_tight(cell) { label + " †" } else { label }
}

fn is_tight(cell: &Cell) -> bool {
    cell.budget_bytes < cell.largest_op_bytes.saturating_mul(2)
}

fn relative(cell: &Cell, ns: u64) -> String {
    format!("{:.3}", ns as f64 / cell.compute_ns as f64)
}

fn gap(cell: &Cell, plan: Planned) -> f64 {
    plan.period_ns as f64 / cell.lp_bound_ns as f64 - 1.0
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The median and worst gaps, by machine and by the tightness of the budget.
fn gaps(cells: &[Cell]) -> String {
    let mut rows = Vec::new();
    for (at, column) in COLUMNS.iter().enumerate().filter(|(_, column)| column.gap) {
        for cells in cells.chunk_by(|one, other| one.machine == other.machine) {
            for (name, is_in) in GROUPS {
                let mut gaps: Vec<_> = cells
                    .iter()
                    .filter(|cell| is_in(cell))
                    .filter_map(|cell| Some((gap(cell, cell.plans[at]?), cell)))
                    .collect();
                gaps.sort_by(|(one, _), (other, _)| one.total_cmp(other));
                let Some(&(worst, cell)) = gaps.last() else { continue };
                rows.push(row([
                    format!("{} on `{}`", column.title, cells[0].machine),
                    name.to_owned(),
                    format!("`{}`, {}", cell.graph, budget(cell)),
                    gaps.len().to_string(),
                    percent((gaps[(gaps.len() - 1) / 2].0 + gaps[gaps.len() / 2].0) / 2.0),
                    percent(worst),
                ]));
            }
        }
    }
    table(3, &["strategy", "budgets", "worst at", "cells", "median", "worst"], rows)
}

type Group = (&'static str, fn(&Cell) -> bool);

const GROUPS: [Group; 3] = [
    ("at least twice the largest op", |cell| cell.percent.is_some() && !is_tight(cell)),
    ("less", |cell| cell.percent.is_some() && is_tight(cell)),
    ("min", |cell| cell.percent.is_none()),
];
