//! What a trace and a report show of a plan that stalls.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use serde_json::Value;
use spillway::planner_core::machine::Direction;
use spillway::planner_core::plan::{Part, Pool, Prediction};
use spillway::planner_core::planner::Strategy;
use spillway::planner_core::{OpId, PerStream, Step, Stream};
use spillway::report::{Actual, Beside, Budgeted};
use spillway::strategy::{Auto, Host};
use spillway::{Error, Graph, GraphBuilder, OwnedPlan, Plan, machines};

const MIB: u64 = 1 << 20;

/// Two rounds over two weights of which one fits beside the activations.
fn work() -> Graph {
    let mut graph = GraphBuilder::new("rounds");
    let weights = ["w0", "w1"].map(|name| graph.state(name, 16 * MIB));
    let mut last = graph.input("x", 6 * MIB);
    for round in 0..2 {
        for (at, &weight) in weights.iter().enumerate() {
            let next = graph.temporary(format!("y{round}{at}"), 6 * MIB);
            let op = graph.op(format!("op {round}{at}"), 1_000_000).workspace_bytes(MIB);
            op.reads([last, weight]).writes([next]);
            last = next;
        }
    }
    graph.build().unwrap()
}

/// A plan that uploads each weight when it is needed.
fn planned() -> Plan {
    let machine = machines::builtin("v100-pcie3").unwrap();
    work().plan(&machine).budget("min").strategy(Strategy::OnDemand).run().unwrap()
}

/// A plan by hand for memory that holds one tensor: the first op of an iteration waits for the
/// download of the iteration before, the second for an upload.
fn one_at_a_time() -> Plan {
    let mut graph = GraphBuilder::new("one at a time");
    let (value, weight) = (graph.temporary("y", 16 * MIB), graph.state("w", 16 * MIB));
    graph.op("scratch", 1_000_000).writes([value]);
    graph.op("update", 1_000_000).reads([weight]).writes([weight]);
    let machine = machines::builtin("v100-pcie3").unwrap();
    let transfer_ns = |way| machine.machine.transfer_ns(way, 16 * MIB).unwrap();
    let transfers_ns = [Direction::HostToDevice, Direction::DeviceToHost].map(transfer_ns);
    let [value, weight] = [value, weight].map(Part::whole);
    let steps = vec![
        Step::launch(OpId(0)),
        Step::Evict(value),
        Step::Prefetch(weight),
        Step::launch(OpId(1)),
        Step::Offload(weight),
        Step::Evict(weight),
    ];
    let pools = vec![Pool { object_bytes: 2 * MIB, count: 8 }];
    let mut plan = OwnedPlan::new(pools, Vec::new(), steps);
    (plan.graph, plan.machine) = ("one at a time".to_owned(), machine.name.clone());
    plan.budget_bytes = 16 * MIB;
    plan.predicted = Prediction {
        period_ns: 2_000_000 + transfers_ns.iter().sum::<u64>(),
        compute_ns: 2_000_000,
        peak_bytes: 16 * MIB,
        h2d_bytes: 16 * MIB,
        d2h_bytes: 16 * MIB,
        host_bytes: 16 * MIB,
        ..Prediction::default()
    };
    Plan::new(&graph.build().unwrap(), &machine, plan).unwrap()
}

/// The start and the end of a slice, in nanoseconds.
fn span_ns(slice: &Value) -> (u64, u64) {
    let ns = |field: &str| (slice[field].as_f64().unwrap_or(0.0) * 1e3).round() as u64;
    (ns("ts"), ns("ts") + ns("dur"))
}

/// An op on the host ends each iteration, and the next one begins with its result.
fn host_last() -> Plan {
    let mut graph = GraphBuilder::new("host last");
    let (value, weight) = (graph.temporary("y", 16 * MIB), graph.state("w", 16 * MIB));
    graph.op("step", 1_000_000).reads([weight]).writes([value]);
    graph.op("update", 1_000_000).reads([value, weight]).writes([weight]).host_ns(3_000_000);
    let all_on_host = Auto::new().with_host(Host::All);
    let machine = machines::builtin("v100-pcie3").unwrap();
    graph.build().unwrap().plan(&machine).strategy(all_on_host).run().unwrap()
}

/// One quantity, whole and in parts: the time in which no op runs on the device.
#[test]
fn stalls_before_launches_add_up_to_the_stall() {
    for plan in [planned(), one_at_a_time(), host_last()] {
        let figures = plan.figures();
        let trace: Value = serde_json::from_slice(&plan.trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let stalls = events.iter().filter(|event| event["cat"] == "stall");
        let sum_ns: u64 = stalls.map(|stall| span_ns(stall).1 - span_ns(stall).0).sum();
        assert_eq!(sum_ns, 4 * figures.stall_ns);
        let page = plan.report();
        let stall = spillway::units::time(figures.stall_ns);
        assert!(page.contains(&format!("of the {stall} of this iteration")), "{stall}");
        assert!(page.contains(&format!("an iteration, {stall} stalled")), "{stall}");
        let drawn = between(&page, "<rect class=\"b stall\"", "</rect>");
        assert!(drawn.count() > 0);
    }
}

#[test]
fn the_trace_shows_stalls_and_what_they_wait_for() {
    trace_shows_stalls(&planned());
    trace_shows_stalls(&one_at_a_time());
}

fn trace_shows_stalls(plan: &Plan) {
    let trace: Value = serde_json::from_slice(&plan.trace()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of_phase = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let stalls: Vec<_> = of_phase("X").filter(|event| event["cat"] == "stall").collect();
    assert!(stalls.iter().all(|stall| stall["tid"] == 1 && stall["name"] == "stall"));
    let stalled_ns: u64 = stalls.iter().map(|stall| span_ns(stall).1 - span_ns(stall).0).sum();
    let figures = plan.figures();
    assert!(figures.stall_ns > figures.compute_ns / 2, "{figures:?}");
    assert_eq!(stalled_ns, 4 * figures.stall_ns);

    assert_eq!((of_phase("s").count(), of_phase("f").count()), (stalls.len(), stalls.len()));
    for (tail, head) in of_phase("s").zip(of_phase("f")) {
        assert_eq!(
            (&tail["id"], &tail["cat"], &tail["name"]),
            (&head["id"], &head["cat"], &head["name"])
        );
        let slice = |track: &Value, ns: u64| {
            let runs = |slice: &&Value| (span_ns(slice).0..span_ns(slice).1).contains(&ns);
            of_phase("X").filter(|slice| slice["tid"] == *track).find(runs).unwrap()
        };
        let (tail_ns, head_ns) = (span_ns(tail).0, span_ns(head).0);
        let (awaited, launch) = (slice(&tail["tid"], tail_ns), slice(&head["tid"], head_ns));
        assert_ne!(awaited["tid"], 1);
        assert_eq!((span_ns(awaited).1, span_ns(launch).0), (head_ns, head_ns));
        assert_eq!(launch["args"]["waited_for"], awaited["args"]["what"]);
        let stall = stalls.iter().find(|stall| span_ns(stall).1 == head_ns).unwrap();
        assert_eq!(stall["args"]["waited_for"], awaited["args"]["what"]);
        let before = format!("stall before the {}", launch["args"]["what"].as_str().unwrap());
        assert_eq!(stall["args"]["what"], *before);
    }
}

/// What stands between two texts, wherever both do.
fn between<'p>(page: &'p str, from: &'p str, to: &'p str) -> impl Iterator<Item = &'p str> {
    page.split(from).skip(1).map(move |rest| rest.split(to).next().unwrap())
}

/// The value of an attribute in the text of a tag.
fn attribute<'t>(tag: &'t str, name: &str) -> &'t str {
    let (_, rest) = tag.split_once(&format!(" {name}=\"")).unwrap();
    rest.split('"').next().unwrap()
}

fn number(tag: &str, name: &str) -> f64 {
    attribute(tag, name).parse().unwrap()
}

/// The page is read as XML, which browsers read alike: each element is closed, in order.
#[test]
fn every_element_of_the_report_is_closed() {
    let page = planned().report();
    let mut open = Vec::new();
    for tag in between(page.strip_prefix("<!DOCTYPE html>").unwrap(), "<", ">") {
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
        assert!(tag.matches('"').count() % 2 == 0, "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn the_report_stacks_memory_by_what_it_holds() {
    let page = planned().report();
    let legend = between(&page, "<ul class=\"legend\">", "</ul>").next().unwrap();
    let entries: Vec<_> = between(legend, "</svg>", "</li>").collect();
    assert_eq!(
        entries,
        [
            "waste, 1.00 MiB at most",
            "workspaces, 1.00 MiB at most",
            "temporaries, 12.0 MiB at most",
            "inputs, 6.00 MiB at most",
            "states, 16.0 MiB at most",
        ]
    );
    // From the top down: no area reaches above the one that is drawn before it.
    let areas: Vec<_> = between(&page, "<path class=\"m ", "</path>").collect();
    let tops = areas.iter().map(|area| {
        let heights = between(attribute(area, "d"), "V", "H");
        let heights = heights.map(|y| y.trim_end_matches('Z').parse::<f64>().unwrap());
        heights.fold(f64::MAX, f64::min)
    });
    let tops: Vec<_> = tops.collect();
    assert_eq!(areas.len(), entries.len());
    assert!(tops.is_sorted() && tops[0] < tops[tops.len() - 1], "{tops:?}");
    let budget = between(&page, "<line class=\"budget\"", ">").next().unwrap();
    assert!((number(budget, "y1") - tops[0]).abs() < 0.15, "this plan uses its budget up");
}

#[test]
fn arrows_of_the_report_lead_from_the_cause_to_the_stall() {
    let page = one_at_a_time().report();
    for cause in ["prefetch", "offload"] {
        let text = format!("waiting for the {cause} of tensor 1 (&quot;w&quot;)");
        assert_eq!(page.matches(&text).count(), 1, "{text}");
    }
    arrows_lead_to_stalls(&page);
    arrows_lead_to_stalls(&planned().report());
}

fn arrows_lead_to_stalls(page: &str) {
    let stalls: Vec<_> = between(page, "<rect class=\"b stall\"", "</rect>").collect();
    let arrows: Vec<_> = between(page, "<path class=\"wait\"", "</path>").collect();
    assert!(arrows.len() >= 2 && arrows.len() == stalls.len(), "{arrows:?}");
    let transfers: Vec<_> = between(page, "<rect class=\"b ", "</rect>")
        .filter(|bar| bar.starts_with("upload") || bar.starts_with("download"))
        .collect();
    for (stall, arrow) in stalls.iter().zip(arrows) {
        let cause = stall.split("waiting for the ").nth(1).unwrap();
        assert!(arrow.contains(&format!(" for the {cause}")), "{arrow} {cause}");
        let point = |letter| -> (f64, f64) {
            let path = attribute(arrow, "d").split_once(letter).unwrap().1;
            let mut numbers = path.split(' ').map(|number| number.parse().unwrap());
            (numbers.next().unwrap(), numbers.next().unwrap())
        };
        let is_within = |bar: &str, (x, y): (f64, f64)| {
            let inside = |at, from: &str, size: &str| {
                (number(bar, from)..=number(bar, from) + number(bar, size)).contains(&at)
            };
            inside(x, "x", "width") && inside(y, "y", "height")
        };
        assert!(is_within(stall, point('L')), "{arrow}");
        let from = transfers.iter().find(|bar| is_within(bar, point('M'))).unwrap();
        let (cause, _) = cause.split_once('<').unwrap();
        assert!(from.contains(&format!("<title>{cause}, ")), "{from} {cause}");
    }
}

#[test]
fn the_search_knows_what_every_bar_is_about() {
    let page = planned().report();
    let names = between(&page, "<script id=\"names\" type=\"application/json\">", "</script>");
    let names: Vec<String> = serde_json::from_str(names.last().unwrap()).unwrap();
    let graph = work();
    let (ops, tensors) = (&graph.owned().op_names, &graph.owned().tensor_names);
    assert_eq!(names, [&ops[..], tensors].concat());
    let of = |bar: &str| -> Vec<&str> {
        let numbers = attribute(bar, "data-n").split(' ');
        numbers.map(|number| &*names[number.parse::<usize>().unwrap()]).collect()
    };
    let titles = ["launch of op 2 (&quot;op 10&quot;)", "prefetch of tensor 1 (&quot;w1&quot;)"];
    let about = [&["op 10", "w0", "y01", "y10"][..], &["w1"]];
    for (title, about) in titles.into_iter().zip(about) {
        let mut bars = between(&page, "<rect ", "</rect>").filter(|bar| bar.contains(title));
        let bar = bars.find(|bar| !bar.contains("stall")).unwrap();
        assert_eq!(of(bar), about);
    }
    // Rows of tables, too.
    let row = between(&page, "<tr data-n=\"", "</tr>").next().unwrap();
    assert!(row.contains(">w0<") || row.contains(">w1<"), "{row}");
}

/// What ends an element or a text in one of the places where names stand.
#[test]
fn a_name_cannot_end_the_script() {
    let mut graph = GraphBuilder::new("</script><b>");
    let weight = graph.state("</script><i>&\"\\\u{2028}", 16 * MIB);
    graph.op("<!--", 1_000_000).reads([weight]);
    let machine = machines::builtin("v100-pcie3").unwrap();
    let plan = graph.build().unwrap().plan(&machine).strategy(Strategy::OnDemand).run().unwrap();
    let page = plan.report();
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (2, 2));
    assert!(!page.contains("<!--") && !page.contains("<i>") && !page.contains("<b>&"));
}

#[test]
fn the_picture_is_an_image_of_its_own() {
    let picture = planned().picture();
    assert!(picture.starts_with("<svg xmlns=") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("http").count(), 1, "only the name space");
    for class in ["compute", "upload", "stall", "state", "workspace", "budget"] {
        assert!(picture.contains(&format!("class=\"{class}")), "{class}");
        assert!(picture.contains(&format!("svg .{class} {{")), "{class} has no colour");
    }
    for label in [">upload</text>", ">stall</text>", "workspaces ≤ 1.00 MiB</text>"] {
        assert!(picture.contains(label), "{label}");
    }
    assert!(!picture.contains(">repeat</text>"), "nothing repeats");
    for element in ["<g", "<text", "<rect", "<path", "<title"] {
        let end = format!("</{}>", &element[1..]);
        let closed = picture.matches(&end).count() + picture.matches("/>").count();
        assert!(picture.matches(element).count() <= closed, "{element}");
    }
}

#[test]
fn the_curve_has_the_plan_on_it() {
    let plan = planned();
    let report =
        |curve: Vec<Budgeted>| plan.report_beside(&Beside::new().with_curve(curve)).unwrap();
    let point = Budgeted::new;
    let this = point(plan.owned().budget_bytes, plan.figures().period_ns);
    let more = point(2 * this.budget_bytes, this.period_ns / 2);
    assert!(!report(vec![this]).contains("Other budgets"));
    let page = report(vec![more, this, point(4 * this.budget_bytes, this.period_ns / 2)]);
    assert_eq!(page.matches("<circle class=\"point").count(), 3);
    assert_eq!(page.matches("<circle class=\"point this\"").count(), 1);
    let corners = between(&page, "<path class=\"curve\" d=\"M", "\"").next().unwrap();
    let x =
        corners.split('L').map(|corner| corner.split(' ').next().unwrap().parse::<f64>().unwrap());
    assert!(x.is_sorted(), "{corners}");
    // All as long as compute: there is no height to divide by.
    let flat = point(this.budget_bytes, plan.figures().compute_ns);
    assert!(!report(vec![flat, flat]).contains("NaN"));
}

/// Nothing of the state needs to be on the device.
#[test]
fn a_share_of_next_to_nothing_ends_no_tag() {
    let mut graph = GraphBuilder::new("idle");
    graph.state("w", 16 * MIB);
    graph.op("op", 1);
    let machine = machines::builtin("v100-pcie3").unwrap();
    let pools = vec![Pool { object_bytes: 2 * MIB, count: 0 }];
    let mut plan = OwnedPlan::new(pools, Vec::new(), vec![Step::launch(OpId(0))]);
    (plan.graph, plan.machine) = ("idle".to_owned(), machine.name.clone());
    plan.predicted = Prediction { period_ns: 1, compute_ns: 1, ..Prediction::default() };
    let plan = Plan::new(&graph.build().unwrap(), &machine, plan).unwrap();
    let curve = vec![Budgeted::new(1, 1), Budgeted::new(2, 1)];
    let page = plan.report_beside(&Beside::new().with_curve(curve)).unwrap();
    assert!(page.contains("&lt; 0.1 %") && !page.contains("< 0.1 %"));
}

/// Three iterations of [`one_at_a_time`] on a device whose uploads take longer.
fn slow_uploads(plan: &Plan, by_ns: u64) -> Actual {
    let transfer_ns = (plan.figures().period_ns - 2_000_000) / 2;
    let period_ns = plan.figures().period_ns + by_ns;
    let mut steps_ns: PerStream<Vec<[u64; 2]>> = PerStream::default();
    let [compute, upload, download, ..] = &mut steps_ns.0;
    for iteration in 0..3 {
        let start_ns = 500 + iteration * period_ns;
        let uploaded_ns = start_ns + 1_000_000 + transfer_ns + by_ns;
        compute.extend([[start_ns, start_ns + 1_000_000], [uploaded_ns, uploaded_ns + 1_000_000]]);
        upload.push([start_ns + 1_000_000, uploaded_ns]);
        download.push([uploaded_ns + 1_000_000, start_ns + period_ns]);
    }
    Actual::new("slow <device>", 7, steps_ns)
}

#[test]
fn differences_are_named_the_largest_first() {
    let plan = one_at_a_time();
    let report = |by_ns| {
        let beside = Beside::new().with_actual(slow_uploads(&plan, by_ns));
        plan.report_beside(&beside).unwrap()
    };
    let page = report(3_000_000);
    let section = between(&page, "<h2>Predicted and measured</h2>", "</section>").next().unwrap();
    assert!(section.contains("slow &lt;device&gt;"), "{section}");
    let cells: Vec<_> =
        between(section, "<td", "</td>").map(|cell| cell.split('>').nth(1).unwrap()).collect();
    assert_eq!(cells.len(), 8, "{section}");
    assert_eq!([cells[0], cells[3]], ["upload of w", "+3.00 ms"]);
    assert_eq!([cells[4], cells[7]], ["stall before update", "+3.00 ms"]);
    assert!(report(0).contains("Every step took as long as predicted"));
    // The same bars once more, for the iteration as it ran.
    let bars = |page: &str| page.matches("<rect class=\"b upload").count();
    assert_eq!(bars(&page), 2 * bars(&plan.report()));
    let none = Beside::new().with_actual(Actual::default());
    assert!(!plan.report_beside(&none).unwrap().contains("Predicted and measured"));
}

#[test]
fn times_that_are_not_those_of_a_run_are_refused_with_their_place() {
    let plan = one_at_a_time();
    let refused = |damage: fn(&mut Actual)| {
        let mut actual = slow_uploads(&plan, 3_000_000);
        damage(&mut actual);
        let traced = plan.trace_beside(&actual).unwrap_err();
        let reported = plan.report_beside(&Beside::new().with_actual(actual));
        assert_eq!(reported.unwrap_err(), traced);
        assert!(matches!(traced, Error::Measured(_)));
        traced.to_string()
    };
    let upload = |error: String, reason: &str| {
        let place = "of iteration 9, the prefetch of tensor 1 (\"w\"), was measured wrongly: it ";
        assert!(error.contains(place) && error.ends_with(reason), "{error}");
    };
    let backwards = refused(|actual| actual.steps_ns[Stream::Upload][2] = [1 << 40, 5]);
    upload(backwards, "starts at 1099511627776 ns, but ends at 5 ns");
    let overlapping = refused(|actual| {
        let uploads = &mut actual.steps_ns[Stream::Upload];
        uploads[1][1] = u64::MAX;
    });
    upload(overlapping, "ends at 18446744073709551615 ns");
    let error = refused(|actual| actual.steps_ns[Stream::Host] = vec![[1, 2]; 3]);
    assert_eq!(error, "3 steps were measured on the host stream, but the plan has no steps there");
    let error = refused(|actual| actual.first_iteration = u64::MAX);
    assert!(error.contains("no iteration can follow iteration 18446744073709551615"), "{error}");
}

#[test]
fn an_iteration_that_was_not_measured_to_its_end_is_not_drawn() {
    let plan = one_at_a_time();
    let whole = slow_uploads(&plan, 3_000_000);
    let mut short = whole.clone();
    short.steps_ns[Stream::Download].pop();
    let mut two = whole;
    two.steps_ns[Stream::Compute].truncate(4);
    two.steps_ns[Stream::Upload].pop();
    two.steps_ns[Stream::Download].pop();
    assert_eq!(plan.trace_beside(&short), plan.trace_beside(&two));
}

#[test]
fn the_trace_has_measured_tracks_beside_the_predicted_ones() {
    let plan = one_at_a_time();
    let trace = plan.trace_beside(&slow_uploads(&plan, 3_000_000)).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let measured: Vec<_> = events.iter().filter(|event| event["pid"] == 2).collect();
    let uploads: Vec<_> = measured.iter().filter(|event| event["cat"] == "upload").collect();
    assert!(!uploads.is_empty());
    for upload in uploads {
        let (from_ns, to_ns) = span_ns(upload);
        assert_eq!(upload["args"]["planned_ns"], to_ns - from_ns - 3_000_000);
    }
    let stalls = measured.iter().filter(|event| event["cat"] == "stall");
    let awaited: Vec<_> =
        stalls.map(|stall| stall["args"]["waited_for"].as_str().unwrap()).collect();
    assert!(awaited.contains(&"prefetch of tensor 1 (\"w\")"), "{awaited:?}");
    assert!(awaited.contains(&"offload of tensor 1 (\"w\")"), "{awaited:?}");
    let arrows =
        |pid: u64| events.iter().filter(move |event| event["ph"] == "s" && event["pid"] == pid);
    let ids = |pid| arrows(pid).map(|arrow| arrow["id"].as_u64().unwrap()).collect::<Vec<_>>();
    assert!(!ids(1).is_empty() && ids(1).iter().all(|id| !ids(2).contains(id)));
}
