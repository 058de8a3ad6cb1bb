//! A server of a decoder whose weights and caches take three times the memory of the device:
//! `cargo run --release -p spillway-plan --example serve`. `docs/serving.md` walks through it.

mod decoder;
mod kernels;

use backend_host::{HostError, MappedDevice};
use decoder::{LAYERS, PAGE, PAGES, Step, VOCABULARY, Work, best, work};
use kernels::{Decoder, floats};
use spillway::planner_core::{Machine, MachineParameters};
use spillway::{Capacity, OwnedMachine, Plan, Session, SessionError};
use std::collections::HashMap;
use std::error::Error;

const CHUNK_BYTES: u64 = 4096;
/// For weights, caches and values of every step; without a budget, these take three times as much.
const BUDGET: &str = "1800KiB";

/// A prompt, and how many tokens are wanted.
struct Request {
    prompt: &'static [u8],
    tokens: usize,
}

const REQUESTS: [Request; 3] = [
    Request { prompt: b"a short one", tokens: 30 },
    Request { prompt: b"a prompt that takes two pages", tokens: 24 },
    Request { prompt: b"short again", tokens: 3 },
];

/// What a server made of a request.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<usize>,
    /// Those from which the last token was chosen.
    logits: Vec<f32>,
}

/// The steps that requests of any length need: a prompt of one page or two, and a token in each page.
fn steps() -> Vec<Step> {
    let prompts = (1..=2).map(|pages| Step::Prompt { pages });
    prompts.chain((1..=PAGES).map(|pages| Step::Token { pages })).collect()
}

/// A link of 1 GB/s.
fn machine() -> Result<OwnedMachine, Box<dyn Error>> {
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(CHUNK_BYTES)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000)
            .with_transfer_latency_ns(1000),
    )?;
    Ok(OwnedMachine::new("served", machine))
}

/// A plan for every step, in one budget.
fn plans(budget: &str) -> Result<HashMap<Step, (Plan, Work)>, Box<dyn Error>> {
    let machine = machine()?;
    let mut plans = HashMap::new();
    for step in steps() {
        let work = work(step)?;
        let plan = work.graph.plan(&machine).budget(budget).run()?;
        plans.insert(step, (plan, work));
    }
    let first_token = plans[&Step::Token { pages: 1 }].0.clone();
    for (step, (plan, _)) in &mut plans {
        *plan = match step {
            Step::Prompt { .. } => plan.between(&first_token)?,
            Step::Token { .. } => plan.arranged_after(&first_token)?,
        };
    }
    Ok(plans)
}

/// A session that runs one plan at a time, and switches to the plan of the next step.
struct Server {
    plans: HashMap<Step, (Plan, Work)>,
    session: Session<MappedDevice, Decoder>,
    step: Step,
    switches: usize,
    /// By switches.
    copied_bytes: u64,
}

impl Server {
    fn new(plans: HashMap<Step, (Plan, Work)>) -> Result<Self, Box<dyn Error>> {
        let step = Step::Prompt { pages: 1 };
        let (first, work) = plans[&step].clone();
        let mut capacity = Capacity::default();
        for (plan, _) in plans.values() {
            capacity = capacity.max(plan.capacity());
        }
        let device = MappedDevice::new(CHUNK_BYTES, capacity.chunks * CHUNK_BYTES)?;
        let kernels = Decoder { work, prompt: Vec::new() };
        let session = Session::with_capacity(first, capacity, device, kernels)?;
        Ok(Self { plans, session, step, switches: 0, copied_bytes: 0 })
    }

    /// Has the next iteration do a step; a prompt is the one that is given.
    fn switch(&mut self, step: Step, prompt: &[u8]) -> Result<(), SessionError<HostError>> {
        if step == self.step && prompt.is_empty() {
            return Ok(());
        }
        let (plan, work) = self.plans[&step].clone();
        let prompt = prompt.to_vec();
        let moved = self.session.switch(plan, |kernels| *kernels = Decoder { work, prompt })?;
        self.step = step;
        self.switches += 1;
        self.copied_bytes += moved.h2d_bytes + moved.d2h_bytes;
        Ok(())
    }

    fn answer(&mut self, request: &Request) -> Result<Answer, SessionError<HostError>> {
        let (mut tokens, mut logits) = (Vec::new(), vec![0; 4 * VOCABULARY]);
        let mut position = request.prompt.len();
        self.switch(Step::Prompt { pages: position.div_ceil(PAGE) }, request.prompt)?;
        loop {
            self.session.step()?;
            let output = self.session.kernels().work.logits;
            self.session.read_output(output, &mut logits)?;
            let logits = floats(&logits);
            tokens.push(best(&logits));
            if tokens.len() == request.tokens || position == PAGES * PAGE {
                return Ok(Answer { tokens, logits });
            }
            // The token that was chosen last gets this position, and may begin a page.
            self.switch(Step::Token { pages: position / PAGE + 1 }, &[])?;
            position += 1;
        }
    }
}

/// What answering all requests took.
struct Served {
    answers: Vec<Answer>,
    /// The device memory for all plans.
    device_bytes: u64,
    switches: usize,
    copied_bytes: u64,
}

/// Answers all requests, with one budget for the plans of all steps.
fn serve(budget: &str) -> Result<Served, Box<dyn Error>> {
    let mut server = Server::new(plans(budget)?)?;
    let answers = REQUESTS.iter().map(|request| server.answer(request));
    let answers = answers.collect::<Result<Vec<_>, _>>()?;
    let device_bytes = server.session.device().created_bytes();
    let Server { switches, copied_bytes, .. } = server;
    Ok(Served { answers, device_bytes, switches, copied_bytes })
}

fn main() -> Result<(), Box<dyn Error>> {
    let [streamed, whole] = [serve(BUDGET)?, serve("100%")?];
    for (request, answer) in REQUESTS.iter().zip(&streamed.answers) {
        println!("{:?}: {:?}", String::from_utf8_lossy(request.prompt), answer.tokens);
    }
    println!(
        "{LAYERS} layers in {} KiB instead of {} KiB; {} switches between plans copied {} KiB: the answers \
         are {}",
        streamed.device_bytes >> 10,
        whole.device_bytes >> 10,
        streamed.switches,
        streamed.copied_bytes >> 10,
        if streamed.answers == whole.answers { "the same" } else { "others" },
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_without_a_budget() -> Result<(), Box<dyn Error>> {
        let [streamed, whole] = [serve(BUDGET)?, serve("100%")?];
        assert!(streamed.answers == whole.answers);
        assert!(streamed.device_bytes * 5 < whole.device_bytes * 2);
        // Logits differ from request to request, so they do depend on the caches.
        let logits: Vec<_> = whole.answers.iter().map(|answer| &answer.logits).collect();
        assert!(logits[0] != logits[1] && logits[1] != logits[2]);
        Ok(())
    }

    #[test]
    fn a_token_downloads_its_logits_and_what_the_host_works_on() -> Result<(), Box<dyn Error>> {
        let plans = plans(BUDGET)?;
        for pages in 1..=PAGES {
            let figures = plans[&Step::Token { pages }].0.figures();
            let kinds = figures.d2h_bytes_by_kind;
            let of_host = 4 * decoder::WIDTH as u64 * figures.on_host;
            assert_eq!((kinds.state, kinds.output), (0, 4 * VOCABULARY as u64), "{pages}");
            assert_eq!((kinds.input, kinds.temporary), (0, of_host), "{pages}");
            assert!(figures.on_host > 0, "layers run on the host");
            assert!(figures.h2d_bytes_by_kind.state > 0, "weights are streamed");
        }
        Ok(())
    }

    /// Where the caches are full, an answer ends.
    #[test]
    fn no_answer_is_longer_than_the_caches() -> Result<(), Box<dyn Error>> {
        let mut server = Server::new(plans("100%")?)?;
        let request = Request { prompt: &[7; 20], tokens: 1000 };
        let count = server.answer(&request)?.tokens.len();
        assert_eq!(count, PAGES * PAGE - 20 + 1);
        Ok(())
    }

    /// A prompt longer than a page, alone and after another one, which has left its pages filled.
    #[test]
    fn what_a_cache_held_before_does_not_matter() -> Result<(), Box<dyn Error>> {
        let mut server = Server::new(plans(BUDGET)?)?;
        let first = server.answer(&REQUESTS[1])?;
        server.answer(&REQUESTS[0])?;
        assert_eq!(server.answer(&REQUESTS[1])?, first);
        Ok(())
    }
}
