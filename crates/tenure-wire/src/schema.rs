//! OpenAPI schemas of what a Rust type does not express: ids, tokens, names, and bounded text.
//! Request bodies whose fields depend on each other are in `request_schemas`.
//!
//! The bounds come from `tenure_core::limits`, and the model enforces them. A schema counts
//! characters where the model counts bytes, so non-ASCII text can be refused although it conforms
//! to the schema.

use tenure_core::{job, limits};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type,
};
use utoipa::{PartialSchema, ToSchema};

use super::locks::Locks;

/// Control characters, which single-line text must not contain.
macro_rules! control {
    () => {
        r"\u0000-\u001f\u007f-\u009f"
    };
}

/// Instants and durations, as the server parses them.
const SINCE: &str = "^(([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?|\
    20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\
    ([.][0-9]{1,3})?Z)$";

const SINGLE_LINE: &str = concat!("^[^", control!(), "]*$");
/// Multi-line text: any character except NUL.
const MULTI_LINE: &str = r"^[^\u0000]*$";
const NOT_BLANK: &str = concat!("^[^", control!(), "]*[^", control!(), r"\s][^", control!(), "]*$");
const KEY_NAME: &str =
    concat!("^[^/", control!(), "]*[^/", control!(), r"\s][^/", control!(), "]*$");
/// A character of a name. Of the non-ASCII characters, only letters and digits are allowed, which a
/// portable pattern cannot express.
macro_rules! name_char {
    () => {
        r"([0-9A-Za-z._:@+=-]|[^\u0000-\u007f])"
    };
}

const NAME: &str = concat!("^", name_char!(), "+$");
const NAME_OR_ALL: &str = concat!(r"^(\*|", name_char!(), "+)$");
const PATH: &str =
    concat!("^", name_char!(), "{1,63}/", name_char!(), "{1,63}/", name_char!(), "{1,200}$");

const BATCHED_PATH: &str = "^/v1/[0-9A-Za-z._~:@+=%/-]*([?][0-9A-Za-z._~:@+=%/&*-]*)?$";

/// Declares uninhabited types, each with one schema. The doc comment of a type is the description
/// in the OpenAPI document.
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
    /// Fencing token of a tenure. It increases with every tenure of a resource.
    FencingToken => integer(0, u64::MAX).examples([1]);
    /// An unsigned 64-bit integer.
    Uint64 => integer(0, u64::MAX);
    /// Number of an attempt, from 1.
    AttemptNumber => integer(0, u64::from(u32::MAX));
    /// An instant, RFC 3339 in UTC.
    Instant => string().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2026-11-16T03:00:14.309Z"]);
    /// An instant, or a duration up to now.
    Since => string().min_length(Some(1)).pattern(Some(SINCE)).examples(["2h"]);
    /// A tenant.
    Tenant => name(limits::TENANT_BYTES_MAX).examples(["default"]);
    /// A tenant, or `*` for all of them.
    TenantOrAll => name(limits::TENANT_BYTES_MAX).pattern(Some(NAME_OR_ALL))
        .examples(["default"]);
    /// Kind of a resource.
    KindName => name(limits::KIND_BYTES_MAX).examples(["report"]);
    /// Name of a resource.
    ResourceName => name(limits::NAME_BYTES_MAX).examples(["june"]);
    /// Name of a lock of a resource.
    LockName => name(limits::LOCK_BYTES_MAX).examples(["main"]);
    /// A resource: `tenant/kind/name`.
    ResourcePath => string().pattern(Some(PATH)).examples(["default/report/june"]);
    /// Name of a process or a holder, for display.
    HolderName => text(1, limits::SESSION_NAME_BYTES_MAX).examples(["ann"]);
    /// Purpose of a tenure, for display.
    Purpose => text(0, limits::PURPOSE_BYTES_MAX).examples(["install"]);
    /// Reason for an action; may be empty.
    OptionalReason => text(0, limits::REASON_BYTES_MAX).examples(["not needed"]);
    /// Reason for an action; must not be blank.
    Reason => text(1, limits::REASON_BYTES_MAX).pattern(Some(NOT_BLANK)).examples(["stuck"]);
    /// Failure code of an attempt, for programs.
    FailureCode => text(1, limits::CODE_BYTES_MAX).examples(["NO_ROOM"]);
    /// Current activity of an attempt.
    ProgressMessage => text(0, limits::MESSAGE_BYTES_MAX).examples(["copying"]);
    /// Failure message of an attempt, for people.
    FailureMessage => string().max_length(Some(limits::MESSAGE_BYTES_MAX)).pattern(Some(MULTI_LINE))
        .examples(["no room\nfree some, or ask for less"]);
    /// Complete lines of a log.
    LogText => string().max_length(Some(limits::LOG_CHUNK_BYTES_MAX)).examples(["one\ntwo\n"]);
    /// Time to live without a heartbeat or renewal, in milliseconds.
    Ttl => integer(limits::TTL_MS_MIN, limits::TTL_MS_MAX).examples([30_000]);
    /// Maximum time that a request waits in the queue, in milliseconds.
    QueueWait => integer(0, limits::WAIT_MS_MAX);
    /// Age above which a held lock is reported, in milliseconds.
    LockMaxAge => integer(1, limits::LOCK_MAX_AGE_MS_MAX).examples([7_200_000]);
    /// Priority within the tenant; higher runs first.
    Priority => ObjectBuilder::new().schema_type(Type::Integer)
        .minimum(Some(-limits::PRIORITY_MAX)).maximum(Some(limits::PRIORITY_MAX));
    /// Always `true`.
    OnlyTrue => ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([true]));
    /// Always `false`.
    OnlyFalse => ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([false]));
    /// Percentage, from 0 to 100.
    Percent => integer(0, 100);
    /// Maximum number of jobs of a claim.
    ClaimSize => integer(1, limits::CLAIM_MAX as u64);
    /// Maximum number of items of a page.
    PageSize => integer(1, limits::PAGE_MAX as u64);
    /// Time until an attempt or a timer, in milliseconds.
    Delay => integer(0, limits::DELAY_MS_MAX).examples([60_000]);
    /// Generation of a resource in quotes, as in `ETag`.
    Generation => string().pattern(Some(r#"^"[0-9]{1,19}"$"#)).examples(["\"3\""]);
    /// Always `*`.
    Any => string_enum(["*"].into_iter());
    /// An `Idempotency-Key`, unique for each new request.
    IdempotencyKey => string().min_length(Some(1)).max_length(Some(256))
        .pattern(Some(r"^[!-~]([\t -~]*[!-~])?$")).examples(["4d0c9f6f2c4e4c7f8a5b1e2d3c4b5a69"]);
    /// The `Idempotency-Key` of an earlier request.
    EarlierIdempotencyKey => string().min_length(Some(1)).max_length(Some(256))
        .examples(["4d0c9f6f2c4e4c7f8a5b1e2d3c4b5a69"]);
    /// Method of a request of a batch.
    BatchedMethod => string_enum(["GET", "POST", "PUT", "DELETE"].into_iter());
    /// Path and query of a request of a batch.
    BatchedPath => string().max_length(Some(4_096)).pattern(Some(BATCHED_PATH))
        .examples(["/v1/resources/report/june"]);
    /// State of a job.
    JobState => string_enum(job::JobState::ALL.iter().map(|state| state.as_str()));
    /// Verdict on a submit.
    Verdict => string_enum(job::Verdict::ALL.iter().map(|verdict| verdict.as_str()));
    /// Outcome of an attempt.
    AttemptOutcome => string_enum(job::AttemptOutcome::ALL.iter().map(|outcome| outcome.as_str()));
    /// Role of a key. Each role includes the permissions of those before it.
    Role => string_enum(tenure_core::Role::ALL.iter().map(|role| role.as_str()));
    /// Display name of a key.
    KeyName => text(1, limits::SESSION_NAME_BYTES_MAX).pattern(Some(KEY_NAME)).examples(["ci"]);
    /// Id of a key.
    KeyId => string().examples(["3f2a9c41d07b"]);
    /// Stable code of a problem.
    ProblemCode => string_enum(super::CODES.into_iter());
}

/// Returns the schema of a string.
#[must_use]
pub fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// Returns the schema of a name: not empty, at most `bytes_max` bytes.
#[must_use]
pub fn name(bytes_max: usize) -> ObjectBuilder {
    string().min_length(Some(1)).max_length(Some(bytes_max)).pattern(Some(NAME))
}

/// Returns the schema of single-line text.
#[must_use]
pub fn text(length_min: usize, bytes_max: usize) -> ObjectBuilder {
    string().min_length(Some(length_min)).max_length(Some(bytes_max)).pattern(Some(SINGLE_LINE))
}

/// Returns the schema of an integer between `min` and `max`.
#[must_use]
pub fn integer(min: u64, max: u64) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(min)).maximum(Some(max))
}

/// Returns the schema of a string enum.
pub fn string_enum<'a>(values: impl Iterator<Item = &'a str>) -> ObjectBuilder {
    string().enum_values(Some(values))
}

impl PartialSchema for Locks {
    fn schema() -> RefOr<Schema> {
        let name = || name(limits::LOCK_BYTES_MAX);
        let several = ArrayBuilder::new()
            .items(name())
            .min_items(Some(1))
            .max_items(Some(limits::LOCK_SET_MAX));
        let description = "One lock, or several locks of one resource, all or none.";
        OneOfBuilder::new().item(name()).item(several).description(Some(description)).into()
    }
}

impl ToSchema for Locks {}
