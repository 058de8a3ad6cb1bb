//! Roles of layers in which device, host and link take turns. The layers on the host form runs at some
//! distances. The layers behind a run come over the link while the host works on the run.

use super::streamed::Layers;

/// Numbers of slots of the largest layer to keep free for streamed layers.
const FREE: [u64; 4] = [1, 2, 3, 4];

/// The most streamed layers behind each run. Each run costs two transfers, but with more runs the uploads are
/// spread more evenly.
const BEHIND: [u64; 5] = [1, 2, 3, 4, 8];

/// The place of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Stays,
    Streamed,
    OnHost,
}

pub(super) const ROLES: [Role; 3] = [Role::Stays, Role::Streamed, Role::OnHost];

/// The distances between runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// By the time of the layers and the link.
    Time,
    /// By the bytes of the layers.
    Bytes,
}

/// The parameters of turns.
#[derive(Clone, Copy)]
pub(super) struct Turns {
    free: u64,
    behind: u64,
    pace: Pace,
}

impl Turns {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let pairs = FREE.into_iter().flat_map(|free| BEHIND.map(|behind| (free, behind)));
        pairs.flat_map(|(free, behind)| {
            [Pace::Time, Pace::Bytes].map(|pace| Self { free, behind, pace })
        })
    }
}

/// All layers together.
pub(super) struct Whole<'a> {
    layers: &'a Layers,
    bytes: u64,
    /// The bytes of layers that exceed the budget.
    pub(super) excess_bytes: u64,
    /// The bytes of layers that may run on the host.
    pub(super) most_bytes: u64,
    /// The time of these layers on the host.
    host_ns: u128,
    /// The bytes of caches and outputs of these layers on the device, if they run there.
    kept_bytes: u128,
}

impl<'a> Whole<'a> {
    pub(super) fn new(layers: &'a Layers) -> Self {
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
        let pairs = layers.bytes.iter().zip(&layers.host_ns);
        let may = pairs.filter_map(|(&bytes, host_ns)| host_ns.map(|_| bytes));
        let bytes = sum(&mut layers.bytes.iter().copied());
        let kept = layers.kept_bytes.iter().zip(&layers.host_ns);
        let kept = kept.filter_map(|(&bytes, host_ns)| host_ns.map(|_| u128::from(bytes)));
        Self {
            layers,
            bytes,
            excess_bytes: layers.excess_bytes(),
            most_bytes: sum(&mut may.into_iter()),
            host_ns: layers.host_ns.iter().flatten().map(|&ns| u128::from(ns)).sum(),
            kept_bytes: kept.sum(),
        }
    }

    /// Returns the excess bytes if this many bytes of weights are on the host.
    fn missing_bytes(&self, host_bytes: u64) -> u64 {
        let kept_bytes = self.of_host(self.kept_bytes, u128::from(host_bytes));
        let kept_bytes = u64::try_from(kept_bytes).unwrap_or(u64::MAX);
        self.excess_bytes.saturating_sub(host_bytes.saturating_add(kept_bytes))
    }

    /// Returns roles in which the host takes about `host_bytes`.
    pub(super) fn roles(&self, host_bytes: u64, turns: Turns) -> Vec<Role> {
        let mut walk = Walk::new(self, host_bytes, turns);
        (0..self.layers.len()).map(|layer| walk.pass(layer)).collect()
    }

    /// Estimates the time of all layers if this many bytes are on the host and this many are streamed.
    fn period_ns(&self, host_bytes: u64, streamed_bytes: u64) -> u128 {
        let layers = self.layers;
        let sum = |of: &[u64]| of.iter().map(|&ns| u128::from(ns)).sum::<u128>();
        let pairs = layers.time_ns.iter().zip(&layers.host_ns);
        let instead = pairs.filter(|(_, host_ns)| host_ns.is_some());
        let instead_ns: u128 = instead.map(|(&time_ns, _)| u128::from(time_ns)).sum();
        let of_host = |whole_ns| self.of_host(whole_ns, u128::from(host_bytes));
        let layers_ns = sum(&layers.time_ns).saturating_sub(of_host(instead_ns));
        let link_ns = sum(&layers.upload_ns).saturating_mul(u128::from(streamed_bytes));
        let link_ns = link_ns / u128::from(self.bytes.max(1));
        layers_ns.saturating_add(of_host(self.host_ns)).max(link_ns)
    }

    /// Returns the share of this many bytes in a quantity of all layers that may run on the host.
    fn of_host(&self, whole_ns: u128, bytes: u128) -> u128 {
        whole_ns.saturating_mul(bytes) / u128::from(self.most_bytes.max(1))
    }
}

/// A walk over the layers. Layers stay until the next run is due. The run and the streamed layers behind it
/// follow.
struct Walk<'w> {
    whole: &'w Whole<'w>,
    pace: Pace,
    runs: u64,
    /// The targets for all layers: the bytes on the host, the streamed bytes, and the length in bytes or in
    /// ns.
    host: u128,
    streamed: u128,
    length: u128,
    /// The same quantities so far.
    on_host: u128,
    came: u128,
    passed: u128,
    /// The bytes of the remaining layers.
    left: u128,
    run: u64,
    is_moving: bool,
}

impl<'w> Walk<'w> {
    fn new(whole: &'w Whole<'w>, host_bytes: u64, turns: Turns) -> Self {
        let Turns { free, behind, pace } = turns;
        let layers = whole.layers;
        let largest = layers.bytes.iter().copied().max().unwrap_or(0).max(1);
        let streamed_bytes = match whole.missing_bytes(host_bytes) {
            0 => 0,
            missing_bytes => missing_bytes.saturating_add(largest.saturating_mul(free)),
        };
        let runs = streamed_bytes.div_ceil(largest.saturating_mul(behind));
        let length = match pace {
            Pace::Time => whole.period_ns(host_bytes, streamed_bytes),
            Pace::Bytes => u128::from(whole.bytes),
        };
        Self {
            whole,
            pace,
            runs: runs.clamp(1, (layers.len() as u64 / 2).max(1)),
            host: u128::from(host_bytes),
            streamed: u128::from(streamed_bytes),
            length,
            on_host: 0,
            came: 0,
            passed: 0,
            left: u128::from(whole.bytes),
            run: 1,
            is_moving: false,
        }
    }

    /// Gives the next layer its role.
    fn pass(&mut self, layer: usize) -> Role {
        let layers = self.whole.layers;
        let (bytes, host_ns) = (u128::from(layers.bytes[layer]), layers.host_ns[layer]);
        let role = self.role(bytes, host_ns.is_some());
        let mut time_ns = layers.time_ns[layer];
        match role {
            Role::OnHost => {
                self.on_host += bytes;
                time_ns = host_ns.unwrap_or(time_ns);
            }
            Role::Streamed => self.came += bytes,
            Role::Stays => {}
        }
        self.passed += if self.pace == Pace::Time { u128::from(time_ns) } else { bytes };
        self.left = self.left.saturating_sub(bytes);
        role
    }

    fn role(&mut self, bytes: u128, may_be_on_host: bool) -> Role {
        let must_move = self.left + self.on_host + self.came <= self.host + self.streamed;
        loop {
            self.is_moving |= must_move || self.is_due(bytes);
            if !self.is_moving {
                return Role::Stays;
            }
            if may_be_on_host && self.on_host + bytes / 2 < self.due(self.host) {
                return Role::OnHost;
            }
            if self.came + bytes / 2 < self.due(self.streamed) {
                return Role::Streamed;
            }
            if self.run == self.runs {
                return Role::Stays;
            }
            (self.is_moving, self.run) = (false, self.run + 1);
        }
    }

    /// Returns the part of a target that is due by the end of this run.
    fn due(&self, whole: u128) -> u128 {
        whole.saturating_mul(u128::from(self.run)) / u128::from(self.runs)
    }

    /// Returns whether a run that starts now ends when the layers behind it are due, if its layers are like
    /// this one.
    fn is_due(&self, bytes: u128) -> bool {
        let ahead = self.due(self.host).saturating_sub(self.on_host).saturating_add(bytes / 2);
        let ahead = ahead / bytes.max(1) * bytes;
        let ahead = match self.pace {
            Pace::Time => self.whole.of_host(self.whole.host_ns, ahead),
            Pace::Bytes => ahead + self.due(self.streamed).saturating_sub(self.came),
        };
        self.passed.saturating_add(ahead) >= self.due(self.length)
    }
}
