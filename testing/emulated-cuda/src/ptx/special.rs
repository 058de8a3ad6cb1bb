//! Special registers: where a thread is in the launch.

use super::registers::{LANES, Row};

/// A special register. Numbers are directions: x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    /// Masks of the lanes that compare like this with the thread's own.
    LanesEqual,
    LanesBelow,
    LanesUpTo,
    LanesAbove,
    LanesFrom,
    DynamicBytes,
    Zero,
}

impl Special {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let direction = || match name.split_once('.')?.1 {
            "x" => Some(0),
            "y" => Some(1),
            "z" => Some(2),
            _ => None,
        };
        Some(match name.split('.').next()? {
            "%tid" => Self::Thread(direction()?),
            "%ntid" => Self::Threads(direction()?),
            "%ctaid" => Self::Block(direction()?),
            "%nctaid" => Self::Blocks(direction()?),
            _ => match name {
                "%laneid" => Self::Lane,
                "%warpid" => Self::Warp,
                "%nwarpid" => Self::Warps,
                "%lanemask_eq" => Self::LanesEqual,
                "%lanemask_lt" => Self::LanesBelow,
                "%lanemask_le" => Self::LanesUpTo,
                "%lanemask_gt" => Self::LanesAbove,
                "%lanemask_ge" => Self::LanesFrom,
                "%dynamic_smem_size" => Self::DynamicBytes,
                "%smid" => Self::Zero,
                _ => return None,
            },
        })
    }
}

/// The position of a warp in any block of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct WarpPosition {
    pub(super) blocks: [u32; 3],
    pub(super) threads: [u32; 3],
    pub(super) warp: u32,
    pub(super) dynamic_bytes: u32,
}

impl WarpPosition {
    /// Returns what a special register holds in each lane. The block's index is set per block.
    pub(super) fn row(&self, special: Special) -> Row<u32> {
        std::array::from_fn(|lane| {
            let thread = self.warp * LANES as u32 + lane as u32;
            let [x, y, _] = self.threads;
            let own = 1u32 << lane;
            match special {
                Special::Thread(0) => thread % x,
                Special::Thread(1) => thread / x % y,
                Special::Thread(_) => thread / x / y,
                Special::Threads(direction) => self.threads[direction],
                Special::Blocks(direction) => self.blocks[direction],
                Special::Lane => lane as u32,
                Special::Warp => self.warp,
                Special::Warps => self.threads.iter().product::<u32>().div_ceil(LANES as u32),
                Special::LanesEqual => own,
                Special::LanesBelow => own - 1,
                Special::LanesUpTo => own | (own - 1),
                Special::LanesAbove => !(own | (own - 1)),
                Special::LanesFrom => !(own - 1),
                Special::DynamicBytes => self.dynamic_bytes,
                Special::Block(_) | Special::Zero => 0,
            }
        })
    }
}
