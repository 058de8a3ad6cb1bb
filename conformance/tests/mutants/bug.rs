//! Ways in which a device can be wrong.

use planner_core::Stream;

/// What is wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nothing.
    None,
    /// The first stream does not wait for the second.
    Deaf(Stream, Stream),
    /// Waits are for the signal before the one that is named.
    WaitsForTheOneBefore,
    /// Of several waits before some work, the last is heard.
    HearsTheLastWait,
    /// A wait holds back work, but not a signal that follows it.
    SignalsPastWaits,
    /// A stream may not wait for itself.
    RefusesOwnPoints,
    /// Points that are not signalled may be awaited by streams.
    WaitsForAnything,
    /// Points that are not signalled may be asked for and blocked for.
    AsksForAnything,
    /// All points are reached.
    ReachesAtOnce,
    /// Blocking does not block.
    BlocksForNothing,
    /// Points are counted from two.
    CountsFromTwo,
    /// A signal that nobody awaits counts twice.
    CountsUnawaitedTwice,
    /// Points depend on how many devices there are.
    CountsOtherDevices,
    /// Uploads lack their last byte.
    UploadsTooLittle,
    /// Uploads have a byte too much.
    UploadsTooMuch,
    /// Downloads lack their last byte.
    DownloadsTooLittle,
    /// Copies end where a chunk ends.
    CopiesOneChunk,
    /// Copies have their sizes in 32 bits.
    CutsSizes,
    /// Copies have their offsets on the host in 32 bits.
    CutsHostOffsets,
    /// Launches have the addresses of their operands in 32 bits.
    CutsOperands,
    /// An upload is swapped with the next.
    UploadsOutOfOrder,
    /// A download is swapped with the next.
    DownloadsOutOfOrder,
    /// Uploads read the host when something else is enqueued.
    UploadsLate,
    /// Copies to where nothing is mapped do nothing.
    CopiesToNowhere,
    /// Copies from where the host has nothing do nothing, and neither do the host's writes and
    /// reads there.
    CopiesFromNowhere,
    /// A second block is taken for the first.
    CreatesBlocksTwice,
    /// What the host writes lacks its last byte.
    WritesHostTooLittle,
    /// What the host writes spoils the byte that follows.
    WritesHostTooMuch,
    /// What the host writes is there when the host reads or writes again.
    WritesHostLate,
    /// What the host reads lacks its last byte.
    ReadsHostTooLittle,
    /// A state does not lie in its slot.
    ForgetsAState,
    /// Inputs are those of the next iteration, in the slots of that.
    FillsTheOtherSlot,
    /// Too many chunks are an error of another kind.
    RunsOutOfSomething,
    /// When there were too many chunks, there can be none.
    NeverRecovers,
    /// Ranges lie over each other.
    RangesOverlap,
    /// The first range begins at 0.
    RangesFromZero,
    /// There are addresses for a thousand ranges, which are then used again.
    RangesComeAgain,
    /// Uploads beyond the thousandth are lost.
    LosesLateUploads,
    /// There are addresses for everything.
    RangesWithoutEnd,
    /// Chunks are mapped the last first.
    MapsBackwards,
    /// A chunk that is mapped already is another chunk.
    AliasesApart,
    /// A chunk that was unmapped is another chunk.
    ChunksForget,
    /// What is mapped where something else was still shows that.
    MappingsAreStale,
    /// Chunk 16 is chunk 0 again.
    ChunksWrap,
    /// Anything is mapped over anything, and nothing happens.
    MapsTwice,
    /// Chunks that are not there are mapped, and nothing happens.
    MapsNothing,
    /// Anything is mapped anywhere, and nothing happens.
    MapsAnywhere,
    /// Unmapping one range unmaps all that show the same chunks.
    UnmapsAliases,
    /// Of neighbours, one is unmapped.
    UnmapsOne,
    /// What is not mapped is unmapped.
    UnmapsNothing,
    /// Parts of mappings are unmapped, and nothing happens.
    UnmapsParts,
    /// Every other launch is lost.
    LosesLaunches,
    /// A launch writes the first byte of its last operand, which it only reads.
    ClobbersOperands,
    /// A launch does not write the first byte of what it writes.
    LeavesAByte,
    /// A launch writes into the word after what it writes.
    Overruns,
    /// The workspace is where the first operand lies.
    SharesTheWorkspace,
    /// A repeat writes other bytes, as if it drew new random numbers.
    RepeatsDrawAnew,
    /// A repeat writes where the first launch of its op wrote.
    RepeatsWriteToTheFirst,
    /// A repeat does all that the first launch of its op did, to states and inputs too.
    RepeatsUpdateStates,
    /// A repeat uses the workspace of the first launch of its op.
    RepeatsUseTheFirstWorkspace,
    /// A repeat that writes where its op has written before does nothing.
    RepeatsTrustTheFirst,
    /// Repeats are lost.
    LosesRepeats,
    /// Every other op on the host is lost.
    LosesHostOps,
    /// Ops on the host beyond the thousandth are lost.
    LosesLateHostOps,
    /// An op on the host reads its first operand wherever it writes.
    HostOpsReadElsewhere,
    /// An op on the host spoils a byte of the block that is not its own.
    HostOpsOverrun,
    /// Ops on the host may have operands anywhere, and then do nothing.
    HostOpsRunNowhere,
    /// If an op fails on the host, the device does not say which.
    BlursHostFailures,
    /// If an op fails on the host, that is an op of another iteration.
    FailsLate,
    /// A device with work under way cannot be dropped.
    DropsBadly,
    /// Memory is lost with every signal.
    LeaksMemory,
    /// A handle is lost now and then.
    LeaksHandles,
}
