//! How the OpenAPI document describes what a type of Rust does not say: ids, tokens, names, and
//! texts with bounds. Bodies whose fields depend on each other are in `bodies`.
//!
//! Only descriptions are here. The bounds are those of `tenure_core::limits`; who enforces them is
//! the model. A schema counts characters where the model counts bytes, so a text of letters beyond
//! ASCII can be refused although it fits here.

use tenure_core::job::AttemptOutcome;
use tenure_core::limits;
use tenure_core::{JobState, Role, Verdict};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type,
};
use utoipa::{PartialSchema, ToSchema};

use super::locks::Locks;

/// Control characters: texts of one line have none.
macro_rules! control {
    () => {
        r"\u0000-\u001f\u007f-\u009f"
    };
}

const LINE: &str = concat!("^[^", control!(), "]*$");
/// Texts of several lines have any character but zero.
const LINES: &str = r"^[^\u0000]*$";
const NOT_BLANK: &str = concat!("^[^", control!(), "]*[^", control!(), r"\s][^", control!(), "]*$");
const KEY_NAME: &str =
    concat!("^[^/", control!(), "]*[^/", control!(), r"\s][^/", control!(), "]*$");
/// A character of a name. Of those beyond ASCII only letters and digits are taken, which is more
/// than a portable pattern can say.
macro_rules! letter {
    () => {
        r"([0-9A-Za-z._:@+=-]|[^\u0000-\u007f])"
    };
}

const NAME: &str = concat!("^", letter!(), "+$");
const NAME_OR_ALL: &str = concat!(r"^(\*|", letter!(), "+)$");
const PATH: &str = concat!("^", letter!(), "{1,63}/", letter!(), "{1,63}/", letter!(), "{1,200}$");

/// Declares uninhabited types that each stand for one schema. The doc comment of a type is the
/// description in the OpenAPI document.
#[macro_export]
macro_rules! schemas {
    ($($(#[doc = $doc:literal])+ $name:ident => $schema:expr;)+) => {$(
        $(#[doc = $doc])+
        pub enum $name {}

        impl ::utoipa::PartialSchema for $name {
            fn schema() -> ::utoipa::openapi::RefOr<::utoipa::openapi::schema::Schema> {
                $schema.description(Some(concat!($($doc),+).trim_start())).into()
            }
        }

        impl ::utoipa::ToSchema for $name {}
    )+};
}

schemas! {
    /// An id: 32 hexadecimal digits.
    Id => string().pattern(Some("^[0-9a-fA-F]{32}$"))
        .examples(["0123456789abcdef0123456789abcdef"]);
    /// The fencing number of a tenure. It rises with every tenure of a resource.
    Fence => integer(0, u64::MAX).examples([1]);
    /// A number of milliseconds, or a place in a list.
    Count => integer(0, u64::MAX);
    /// The number of an attempt, from 1.
    AttemptNumber => integer(0, u64::from(u32::MAX));
    /// An instant, RFC 3339 in UTC.
    Instant => string().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2026-11-16T03:00:14.309Z"]);
    /// A tenant.
    Tenant => name(limits::TENANT_BYTES_MAX).examples(["default"]);
    /// A tenant, or `*` for all of them.
    TenantOrAll => name(limits::TENANT_BYTES_MAX).pattern(Some(NAME_OR_ALL))
        .examples(["default"]);
    /// The kind of a resource.
    KindName => name(limits::KIND_BYTES_MAX).examples(["report"]);
    /// The name of a resource.
    ResourceName => name(limits::NAME_BYTES_MAX).examples(["june"]);
    /// The name of a lock of a resource.
    LockName => name(limits::LOCK_BYTES_MAX).examples(["main"]);
    /// A resource: `tenant/kind/name`.
    ResourcePath => string().pattern(Some(PATH)).examples(["default/report/june"]);
    /// What people call a process or a holder.
    HolderName => text(1, limits::SESSION_NAME_BYTES_MAX).examples(["ann"]);
    /// What a tenure is for.
    Purpose => text(0, limits::PURPOSE_BYTES_MAX).examples(["install"]);
    /// A reason, which may be empty.
    Note => text(0, limits::REASON_BYTES_MAX).examples(["not needed"]);
    /// A reason that says something.
    Reason => text(1, limits::REASON_BYTES_MAX).pattern(Some(NOT_BLANK)).examples(["stuck"]);
    /// Why an attempt failed, for programs.
    FailureCode => text(1, limits::CODE_BYTES_MAX).examples(["NO_ROOM"]);
    /// What an attempt does now.
    Doing => text(0, limits::MESSAGE_BYTES_MAX).examples(["copying"]);
    /// Why an attempt failed, for people.
    FailureMessage => string().max_length(Some(limits::MESSAGE_BYTES_MAX)).pattern(Some(LINES))
        .examples(["no room\nfree some, or ask for less"]);
    /// Whole lines of a log.
    LogText => string().max_length(Some(limits::LOG_CHUNK_BYTES_MAX)).examples(["one\ntwo\n"]);
    /// How long something lives without a heartbeat, in milliseconds.
    Ttl => integer(limits::TTL_MS_MIN, limits::TTL_MS_MAX).examples([30_000]);
    /// How long a request may wait in the queue, in milliseconds.
    QueueWait => integer(0, limits::WAIT_MS_MAX);
    /// Higher goes first within its tenant.
    Priority => ObjectBuilder::new().schema_type(Type::Integer)
        .minimum(Some(-limits::PRIORITY_MAX)).maximum(Some(limits::PRIORITY_MAX));
    /// Only `true`.
    OnlyTrue => ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([true]));
    /// Only `false`.
    OnlyFalse => ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([false]));
    /// From 0 to 100.
    Percent => integer(0, 100);
    /// How many jobs a claim takes at most.
    ClaimSize => integer(1, limits::CLAIM_MAX as u64);
    /// How many rows a page has at most.
    PageSize => integer(1, limits::PAGE_MAX as u64);
    /// An `Idempotency-Key`, drawn anew for each new request.
    RequestKey => string().min_length(Some(1)).max_length(Some(256))
        .pattern(Some(r"^[!-~]([\t -~]*[!-~])?$")).examples(["4d0c9f6f2c4e4c7f8a5b1e2d3c4b5a69"]);
    /// The `Idempotency-Key` of an earlier request.
    EarlierKey => string().min_length(Some(1)).max_length(Some(256))
        .examples(["4d0c9f6f2c4e4c7f8a5b1e2d3c4b5a69"]);
    /// Where a job is in its life.
    JobStateWord => words(JobState::ALL.iter().map(|state| state.as_str()));
    /// What a submit came to.
    VerdictWord => words(Verdict::ALL.iter().map(|verdict| verdict.as_str()));
    /// How an attempt ended.
    AttemptWord => words(AttemptOutcome::ALL.iter().map(|outcome| outcome.as_str()));
    /// What a key may do; each may do all that those before it may.
    RoleName => words(Role::ALL.iter().map(|role| role.as_str()));
    /// What people call a key.
    KeyName => text(1, limits::SESSION_NAME_BYTES_MAX).pattern(Some(KEY_NAME)).examples(["ci"]);
    /// The id of a key.
    KeyId => string().examples(["3f2a9c41d07b"]);
    /// A stable code.
    ProblemCode => words(super::CODES.into_iter());
}

/// A string.
#[must_use]
pub fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// A name: non-empty, at most `bytes_max` bytes.
#[must_use]
pub fn name(bytes_max: usize) -> ObjectBuilder {
    string().min_length(Some(1)).max_length(Some(bytes_max)).pattern(Some(NAME))
}

/// Text on one line.
#[must_use]
pub fn text(length_min: usize, bytes_max: usize) -> ObjectBuilder {
    string().min_length(Some(length_min)).max_length(Some(bytes_max)).pattern(Some(LINE))
}

/// An integer within bounds.
#[must_use]
pub fn integer(min: u64, max: u64) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(min)).maximum(Some(max))
}

/// One of a fixed set of words.
pub fn words<'a>(words: impl Iterator<Item = &'a str>) -> ObjectBuilder {
    string().enum_values(Some(words))
}

impl PartialSchema for Locks {
    fn schema() -> RefOr<Schema> {
        let name = || name(limits::LOCK_BYTES_MAX);
        let several = ArrayBuilder::new()
            .items(name())
            .min_items(Some(1))
            .max_items(Some(limits::LOCK_SET_MAX));
        let says = "One lock, or several of one resource: all or none.";
        OneOfBuilder::new().item(name()).item(several).description(Some(says)).into()
    }
}

impl ToSchema for Locks {}
