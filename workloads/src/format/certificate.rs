//! `spillway.certificate.v1`.

use super::error::FormatError;
use super::json::{Document, Object, parse};
use super::render::render;
use crate::certificate::OwnedCertificate;
use planner_core::OpId;
use planner_core::bounds::BoundOrder;
use planner_core::bounds::priced::{ONE, Price, intervals};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct CertificateRecord<'a> {
    format: Cow<'a, str>,
    graph: Cow<'a, str>,
    machine: Cow<'a, str>,
    budget_bytes: u64,
    order: OrderRecord,
    repeats: bool,
    bound_ns: u64,
    marks: Cow<'a, [u32]>,
    intervals: Vec<Object<PriceRecord>>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OrderRecord {
    Given,
    Any,
}

#[derive(Serialize, Deserialize)]
struct PriceRecord {
    memory: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    host: u64,
    upload: u64,
    download: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(price: &u64) -> bool {
    *price == 0
}

/// Reads a certificate, gzip or plain. Checks only its form: the proof depends on the graph and the machine.
///
/// # Errors
/// The bytes are not a certificate file.
pub fn read_certificate(bytes: &[u8]) -> Result<OwnedCertificate, FormatError> {
    let record: CertificateRecord<'static> = parse(bytes, Document::Certificate)?;
    let needed = intervals(record.marks.len());
    if record.intervals.len() != needed {
        return Err(FormatError::malformed(format!(
            "intervals: {} marks need {needed} intervals, and there are {}",
            record.marks.len(),
            record.intervals.len()
        )));
    }
    let price = |(at, Object(record)): (usize, Object<PriceRecord>)| {
        let PriceRecord { memory, host, upload, download } = record;
        match upload.checked_add(download) {
            Some(shares) if shares <= ONE => Ok(Price { memory, host, upload, download }),
            _ => Err(FormatError::malformed(format!(
                "intervals[{at}]: upload and download add up to more than {ONE}"
            ))),
        }
    };
    Ok(OwnedCertificate {
        graph: record.graph.into_owned(),
        machine: record.machine.into_owned(),
        budget_bytes: record.budget_bytes,
        order: match record.order {
            OrderRecord::Given => BoundOrder::Given,
            OrderRecord::Any => BoundOrder::Any,
        },
        repeats: record.repeats,
        bound_ns: record.bound_ns,
        marks: record.marks.iter().map(|&op| OpId(op)).collect(),
        intervals: record.intervals.into_iter().enumerate().map(price).collect::<Result<_, _>>()?,
    })
}

/// Writes a certificate as JSON.
#[must_use]
pub fn write_certificate(certificate: &OwnedCertificate) -> Vec<u8> {
    let intervals = certificate.intervals.iter().map(|price| {
        let Price { memory, host, upload, download } = *price;
        Object(PriceRecord { memory, host, upload, download })
    });
    render(&CertificateRecord {
        format: Document::Certificate.format().into(),
        graph: certificate.graph.as_str().into(),
        machine: certificate.machine.as_str().into(),
        budget_bytes: certificate.budget_bytes,
        order: match certificate.order {
            BoundOrder::Given => OrderRecord::Given,
            BoundOrder::Any => OrderRecord::Any,
        },
        repeats: certificate.repeats,
        bound_ns: certificate.bound_ns,
        marks: certificate.marks.iter().map(|op| op.0).collect(),
        intervals: intervals.collect(),
    })
}
