//! The map of two reservations of 8 chunks of 16 bytes each, and of 10 chunks.

use backend_checks::{AddressMap, Refused};
use planner_core::backend::{Chunks, DeviceAddress};

/// An address in the first reservation, which begins at 100: not at a multiple of the chunk size.
const fn at(chunk: u64) -> DeviceAddress {
    DeviceAddress(100 + 16 * chunk)
}

const fn chunks(first: u64, count: u64) -> Chunks {
    Chunks { first, count }
}

/// Maps chunks 4 and 5 at position 1, and chunk 4 again at position 3.
fn books() -> AddressMap<&'static str> {
    let mut books = AddressMap::new(16);
    books.create(10);
    books.reserve(at(0), 8 * 16, "low");
    books.reserve(at(8), 8 * 16, "high");
    books.map(at(1), chunks(4, 2));
    books.map(at(3), chunks(4, 1));
    books
}

#[test]
fn chunks_are_created_once() {
    let mut books = AddressMap::<()>::new(16);
    assert_eq!(books.check_create(), Ok(()));
    books.create(0);
    assert_eq!(books.check_create(), Err(Refused::CreatedTwice));
    assert_eq!([0, 2, u64::MAX].map(|chunks| books.bytes(chunks)), [None, Some(32), None]);
}

#[test]
fn chunks_are_mapped_where_addresses_are_reserved_and_free() {
    let books = books();
    assert_eq!(books.check_map(at(4), chunks(6, 4)), Ok(&"low"));
    assert_eq!(books.check_map(at(8), chunks(4, 2)), Ok(&"high"));
    let far = DeviceAddress(u64::MAX - 15);
    for (at, count) in [(at(7), 2), (at(4), 0), (at(4), u64::MAX), (at(16), 1), (far, 1)] {
        assert_eq!(books.check_map(at, chunks(0, count)), Err(Refused::NotReserved(at)));
    }
    for at in [DeviceAddress(99), DeviceAddress(101), DeviceAddress(0)] {
        assert_eq!(books.check_map(at, chunks(0, 1)), Err(Refused::NotReserved(at)));
    }
    for (first, unknown) in [(9, 10), (12, 12), (u64::MAX, u64::MAX)] {
        // Two reasons apply, and the first is reported: a chunk is mapped there as well.
        let refused = Err(Refused::UnknownChunk(unknown));
        assert_eq!(books.check_map(at(1), chunks(first, 2)), refused);
    }
    for (first, count, mapped) in [(0, 2, 1), (0, 8, 3), (1, 1, 1), (2, 1, 2), (3, 2, 3)] {
        let refused = Err(Refused::AlreadyMapped(at(mapped)));
        assert_eq!(books.check_map(at(first), chunks(0, count)), refused);
    }
    assert!(AddressMap::<()>::new(16).check_map(at(0), chunks(0, 1)).is_err());
}

#[test]
fn what_is_mapped_is_found() {
    let mut books = books();
    let inside = DeviceAddress(at(1).0 + 3);
    assert_eq!(books.check_mapped(inside, 45), Ok(&"low"));
    assert_eq!(books.physical(inside, 30), Ok(vec![67..96, 64..65]));
    assert!(books.mappings().eq([(at(1), 32), (at(3), 16)]));
    for (at, bytes) in [(inside, 46), (at(0), 17), (at(4), 1), (at(1), u64::MAX)] {
        assert_eq!(books.physical(at, bytes), Err(Refused::NotMapped(at)));
    }
    books.map(at(4), chunks(0, 4));
    books.map(at(8), chunks(0, 1));
    assert_eq!(books.check_mapped(at(8), 16), Ok(&"high"));
    assert!(books.begins(at(0)) && !books.begins(at(1)));
    let across = books.check_mapped(at(7), 17);
    assert_eq!(across, Err(Refused::NotMapped(at(7))), "two reservations");
}

#[test]
fn whole_mappings_are_unmapped() {
    let mut books = books();
    for (first, count) in [(1, 1), (2, 1), (2, 2)] {
        let refused = Err(Refused::PartOfMapping(at(first)));
        assert_eq!(books.check_unmap(at(first), count), refused);
    }
    for (first, count) in [(0, 2), (3, 2), (4, 1)] {
        assert_eq!(books.check_unmap(at(first), count), Err(Refused::NotMapped(at(first))));
    }
    for at in [DeviceAddress(101), at(16)] {
        assert_eq!(books.check_unmap(at, 1), Err(Refused::NotReserved(at)));
    }
    for (first, count) in [(1, 2), (3, 1), (1, 3)] {
        assert_eq!(books.check_unmap(at(first), count), Ok(&"low"));
    }
    books.unmap(at(1), 2);
    assert!(books.mappings().eq([(at(3), 16)]));
    books.unmap(at(3), 1);
    assert_eq!(books.check_map(at(0), chunks(0, 8)), Ok(&"low"));
}

#[test]
fn what_reaches_beyond_64_bits_ends_with_them() {
    let mut books = AddressMap::new(16);
    books.create(u64::MAX);
    let start = DeviceAddress(u64::MAX - 31);
    books.reserve(start, 64, "last");
    let (last, beyond) = (u64::MAX / 16 - 1, u64::MAX / 16);
    assert_eq!(books.check_map(start, chunks(beyond, 1)), Err(Refused::UnknownChunk(beyond)));
    assert_eq!(books.check_map(start, chunks(last, 1)), Ok(&"last"));
    books.map(start, chunks(last, 1));
    let physical = books.physical(start, 16).unwrap();
    assert!(physical.into_iter().eq(std::iter::once(last * 16..beyond * 16)));
    assert_eq!(books.check_unmap(start, 1), Ok(&"last"));
    books.unmap(start, 1);
    assert_eq!(books.mappings().count(), 0);
}
