//! The messages of `proto/tollgate/state/v1`, as generated. Their meaning is documented there.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    reason = "generated code: the proto files carry the documentation"
)]

include!(concat!(env!("OUT_DIR"), "/tollgate.state.v1.rs"));
