//! The registers of a warp, and computations over all of its lanes.

/// How many lanes a warp has.
pub(super) const LANES: usize = 32;

/// A bit for each lane.
pub(super) type Mask = u32;

/// One register in all lanes.
pub(super) type Row<C> = [C; LANES];

/// The index of a register among those of its size.
pub(super) type Slot = usize;

/// The registers of a warp: those of up to 32 bits, those of 64, and predicates.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    pub(super) words: Vec<Row<u32>>,
    pub(super) longs: Vec<Row<u64>>,
    pub(super) predicates: Vec<Mask>,
}

/// The bits of a register in one lane.
pub(super) trait Cell: Copy + Default {
    fn rows(registers: &Registers) -> &[Row<Self>];
    fn rows_mut(registers: &mut Registers) -> &mut [Row<Self>];
}

impl Cell for u32 {
    fn rows(registers: &Registers) -> &[Row<Self>] {
        &registers.words
    }

    fn rows_mut(registers: &mut Registers) -> &mut [Row<Self>] {
        &mut registers.words
    }
}

impl Cell for u64 {
    fn rows(registers: &Registers) -> &[Row<Self>] {
        &registers.longs
    }

    fn rows_mut(registers: &mut Registers) -> &mut [Row<Self>] {
        &mut registers.longs
    }
}

/// A value that a register holds. A narrower one takes the low bits.
pub(super) trait Value: Copy + 'static {
    type Cell: Cell;
    fn of(cell: Self::Cell) -> Self;
    fn cell(self) -> Self::Cell;
}

macro_rules! values {
    ($($type:ty, $cell:ty);*) => {$(
        impl Value for $type {
            type Cell = $cell;

            fn of(cell: $cell) -> Self {
                cell as Self
            }

            fn cell(self) -> $cell {
                self as $cell
            }
        }
    )*};
}

values! { u8, u32; u16, u32; u32, u32; i8, u32; i16, u32; i32, u32; u64, u64; i64, u64 }

impl Value for f32 {
    type Cell = u32;

    fn of(cell: u32) -> Self {
        Self::from_bits(cell)
    }

    fn cell(self) -> u32 {
        self.to_bits()
    }
}

impl Value for f64 {
    type Cell = u64;

    fn of(cell: u64) -> Self {
        Self::from_bits(cell)
    }

    fn cell(self) -> u64 {
        self.to_bits()
    }
}

impl Registers {
    pub(super) fn row<C: Cell>(&self, slot: Slot) -> &Row<C> {
        &C::rows(self)[slot]
    }

    /// Sets a register in some lanes.
    pub(super) fn put<C: Cell>(&mut self, slot: Slot, lanes: Mask, row: &Row<C>) {
        let old = &mut C::rows_mut(self)[slot];
        if lanes == Mask::MAX {
            *old = *row;
            return;
        }
        for lane in 0..LANES {
            if lanes >> lane & 1 == 1 {
                old[lane] = row[lane];
            }
        }
    }

    /// Sets a predicate in some lanes.
    pub(super) fn put_predicate(&mut self, slot: Slot, lanes: Mask, values: Mask) {
        let old = &mut self.predicates[slot];
        *old = *old & !lanes | values & lanes;
    }

    /// Computes a register from another, in some lanes.
    pub(super) fn map<A: Value, D: Value>(
        &mut self,
        lanes: Mask,
        to: Slot,
        from: Slot,
        function: impl Fn(A) -> D,
    ) {
        let a = self.row::<A::Cell>(from);
        let mut row = [D::Cell::default(); LANES];
        for lane in 0..LANES {
            row[lane] = function(A::of(a[lane])).cell();
        }
        self.put(to, lanes, &row);
    }

    /// Computes a register from two others, in some lanes.
    pub(super) fn map2<A: Value, B: Value, D: Value>(
        &mut self,
        lanes: Mask,
        to: Slot,
        from: [Slot; 2],
        function: impl Fn(A, B) -> D,
    ) {
        let (a, b) = (self.row::<A::Cell>(from[0]), self.row::<B::Cell>(from[1]));
        let mut row = [D::Cell::default(); LANES];
        for lane in 0..LANES {
            row[lane] = function(A::of(a[lane]), B::of(b[lane])).cell();
        }
        self.put(to, lanes, &row);
    }

    /// Computes a register from three others, in some lanes.
    pub(super) fn map3<A: Value, B: Value, C: Value, D: Value>(
        &mut self,
        lanes: Mask,
        to: Slot,
        from: [Slot; 3],
        function: impl Fn(A, B, C) -> D,
    ) {
        let (a, b) = (self.row::<A::Cell>(from[0]), self.row::<B::Cell>(from[1]));
        let c = self.row::<C::Cell>(from[2]);
        let mut row = [D::Cell::default(); LANES];
        for lane in 0..LANES {
            row[lane] = function(A::of(a[lane]), B::of(b[lane]), C::of(c[lane])).cell();
        }
        self.put(to, lanes, &row);
    }

    /// Returns the lanes in which a comparison of two registers holds.
    pub(super) fn compare<T: Value>(
        &self,
        [a, b]: [Slot; 2],
        holds: impl Fn(T, T) -> bool,
    ) -> Mask {
        let (a, b) = (self.row::<T::Cell>(a), self.row::<T::Cell>(b));
        let mut lanes = 0;
        for lane in 0..LANES {
            lanes |= Mask::from(holds(T::of(a[lane]), T::of(b[lane]))) << lane;
        }
        lanes
    }
}

/// Returns the lanes of a mask, in order.
pub(super) fn lanes(mut mask: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}
