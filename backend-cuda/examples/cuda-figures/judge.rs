//! What was predicted, against what was measured.

/// A plan's period, twice.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub(crate) name: String,
    /// Of all launches on the device in an iteration, repeats included.
    pub(crate) launches_ns: f64,
    pub(crate) predicted_ns: f64,
    pub(crate) measured_ns: f64,
    /// The time of launches that are shorter than ten ticks of the timer.
    pub(crate) coarse_ns: f64,
    pub(crate) host: Host,
}

/// What the host does in an iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Host {
    /// Time of the host less the time for mapping and the time in which it is blocked.
    pub(crate) enqueue_ns: f64,
    pub(crate) mapping_ns: f64,
    /// Time in which the host waits for the device.
    pub(crate) blocked_ns: f64,
    /// Steps on all streams. Each step signals its stream.
    pub(crate) steps: f64,
    pub(crate) events: f64,
    pub(crate) waits: f64,
    pub(crate) copies: f64,
}

impl Timed {
    /// The predicted period less all launches on the device.
    fn stall_ns(&self) -> f64 {
        self.predicted_ns - self.launches_ns
    }

    /// What a prediction may be wrong by: the larger of 5 % of the stall and 1 % of the period.
    fn tolerance_ns(&self) -> f64 {
        (0.05 * self.stall_ns()).max(0.01 * self.predicted_ns)
    }

    pub(crate) fn error_ns(&self) -> f64 {
        self.measured_ns - self.predicted_ns
    }

    /// Whether the timer may add more than the tolerance to a period. It may make each short op longer
    /// by up to a tick.
    pub(crate) fn is_coarse(&self) -> bool {
        0.1 * self.coarse_ns > self.tolerance_ns()
    }

    pub(crate) fn is_met(&self) -> bool {
        !self.is_coarse() && self.error_ns().abs() <= self.tolerance_ns()
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match (self.is_coarse(), self.is_met()) {
            (true, _) => "timer too coarse",
            (false, true) => "met",
            (false, false) => "missed",
        }
    }

    /// The error, of the period.
    pub(crate) fn error(&self) -> String {
        format!("{:+.2} %", 100.0 * self.error_ns() / self.predicted_ns)
    }

    /// The error, of the stall.
    pub(crate) fn error_of_stall(&self) -> String {
        match self.stall_ns() {
            stall_ns if stall_ns > 0.0 => format!("{:+.1} %", 100.0 * self.error_ns() / stall_ns),
            _ => "no stall".to_owned(),
        }
    }

    /// Whether this one is to be faster than another by more than a prediction may be wrong, and
    /// was slower.
    fn is_out_of_order(&self, slower: &Self) -> bool {
        let tolerance_ns = self.tolerance_ns().max(slower.tolerance_ns());
        slower.predicted_ns - self.predicted_ns > tolerance_ns
            && slower.measured_ns < self.measured_ns
    }
}

/// The plans of most of which no two are out of order. At most 32 plans.
pub(crate) fn in_order(plans: &[Timed]) -> u32 {
    let mut conflicts = vec![0u32; plans.len()];
    for (faster, slower) in out_of_order(plans) {
        conflicts[faster] |= 1 << slower;
        conflicts[slower] |= 1 << faster;
    }
    most_apart(&conflicts, plans.len(), u32::MAX.checked_shr(32 - plans.len() as u32).unwrap_or(0))
}

/// The size of the largest set of nodes of which no two conflict: without the node of most
/// conflicts, or without those that it conflicts with.
fn most_apart(conflicts: &[u32], nodes: usize, left: u32) -> u32 {
    let of = |node: usize| (conflicts[node] & left).count_ones();
    let worst = (0..nodes).filter(|node| left >> node & 1 == 1).max_by_key(|&node| of(node));
    match worst {
        Some(worst) if of(worst) > 0 => {
            let without = left & !(1 << worst);
            let with = without & !conflicts[worst];
            let others = most_apart(conflicts, nodes, with) + 1;
            others.max(most_apart(conflicts, nodes, without))
        }
        _ => left.count_ones(),
    }
}

/// The pair out of order whose predictions are furthest apart.
pub(crate) fn worst_pair(plans: &[Timed]) -> Option<(usize, usize)> {
    let apart = |&(faster, slower): &(usize, usize)| {
        plans[slower].predicted_ns / plans[faster].predicted_ns
    };
    out_of_order(plans).max_by(|one, other| apart(one).total_cmp(&apart(other)))
}

/// All pairs out of order.
fn out_of_order(plans: &[Timed]) -> impl Iterator<Item = (usize, usize)> {
    let pairs = (0..plans.len()).flat_map(|one| (0..plans.len()).map(move |other| (one, other)));
    pairs.filter(|&(faster, slower)| plans[faster].is_out_of_order(&plans[slower]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(predicted_ns: f64, measured_ns: f64) -> Timed {
        let (name, launches_ns) = (String::new(), 1000.0);
        let (coarse_ns, host) = (0.0, Host::default());
        Timed { name, launches_ns, predicted_ns, measured_ns, coarse_ns, host }
    }

    #[test]
    fn ops_that_a_timer_cannot_time_are_not_judged() {
        let met = timed(10_000.0, 10_050.0);
        assert_eq!(met.verdict(), "met");
        let coarse = |coarse_ns| Timed { coarse_ns, ..met.clone() };
        // A tenth of their time is more than 5 % of the stall of 9000.
        assert_eq!(coarse(4000.0).verdict(), "met");
        assert_eq!(coarse(5000.0).verdict(), "timer too coarse");
    }

    #[test]
    fn an_error_is_held_against_the_stall_and_the_period() {
        // A stall of 1000 allows 50.
        assert!(timed(2000.0, 2050.0).is_met());
        assert!(timed(2000.0, 1950.0).is_met());
        assert!(!timed(2000.0, 2051.0).is_met());
        // One of 100 allows 5, and the period 11.
        assert!(timed(1100.0, 1111.0).is_met());
        assert!(!timed(1100.0, 1112.0).is_met());
        assert_eq!(timed(2000.0, 2100.0).error(), "+5.00 %");
        assert_eq!(timed(2000.0, 1900.0).error_of_stall(), "-10.0 %");
        assert_eq!(timed(1000.0, 1010.0).error_of_stall(), "no stall");
    }

    #[test]
    fn the_most_plans_in_order_are_counted() {
        let periods = (0..20).map(|at| 2000.0 * 1.2f64.powi(at));
        let plans: Vec<_> = periods.map(|period| timed(period, period)).collect();
        assert_eq!((in_order(&plans), worst_pair(&plans)), (20, None));
        // One that is far too slow.
        let mut one = plans.clone();
        one[3].measured_ns = 1e6;
        assert_eq!((in_order(&one), worst_pair(&one)), (19, Some((3, 19))));
        // Two neighbours that swap.
        let mut swapped = plans.clone();
        swapped[5].measured_ns = swapped[6].measured_ns + 1.0;
        assert_eq!((in_order(&swapped), worst_pair(&swapped)), (19, Some((5, 6))));
        // All the other way round.
        let mut reversed = plans.clone();
        for (plan, other) in reversed.iter_mut().zip(plans.iter().rev()) {
            plan.measured_ns = other.measured_ns;
        }
        assert_eq!((in_order(&reversed), worst_pair(&reversed)), (1, Some((0, 19))));
    }

    #[test]
    fn plans_that_are_to_take_as_long_may_change_places() {
        let plans = [timed(2000.0, 2100.0), timed(2050.0, 2000.0)];
        assert_eq!(in_order(&plans), 2);
        let plans = [timed(2000.0, 2100.0), timed(2060.0, 2000.0)];
        assert_eq!(in_order(&plans), 1);
    }

    #[test]
    fn as_many_plans_as_there_are_bits() {
        let plans: Vec<_> = (0..32u32).map(|at| timed(2000.0 + f64::from(at), 3000.0)).collect();
        assert_eq!(in_order(&plans), 32);
        assert_eq!(in_order(&[]), 0);
    }
}
