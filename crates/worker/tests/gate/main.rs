//! A gate against a real ledger behind the wire, in virtual time.

mod asking;
mod leases;
mod world;
