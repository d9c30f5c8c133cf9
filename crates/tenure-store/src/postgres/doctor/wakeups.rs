//! Whether a notification comes through: one is sent over the main address and listened for.
//!
//! A pooler in transaction mode swallows it, since the connection that listens is not ours.

use std::future::{pending, poll_fn};
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Config};

use super::Finding;
use crate::postgres::link::{Link, unavailable};
use crate::postgres::settings::Settings;
use crate::postgres::tls::Tls;
use crate::random;
use crate::store::Result;

/// How long a notification may be on its way.
const HEARD_MAX: Duration = Duration::from_secs(3);
/// How full the queue of notifications may be, in percent.
const QUEUE_MAX: i32 = 50;

const NAME: &str = "wake-ups";
const VOIDS: &str = "nothing of what locks promise; but what one server frees, those who wait at \
                     another find only by asking again, up to a second later";

pub(super) async fn examine(settings: &Settings, tls: &Tls, mouth: &Link, queue: i32) -> Finding {
    if queue > QUEUE_MAX {
        return Finding::bad(
            NAME,
            format!("the queue of notifications is {queue} % full"),
            "when it is full, transactions that notify fail",
            "end the session that listens inside a long transaction: see pg_stat_activity",
        );
    }
    let direct = settings.listen.as_ref().map(|to| direct(&settings.config, to));
    match (hears(&settings.config, tls, mouth).await, direct) {
        (Ok(heard), Some(direct)) => {
            let main = if heard { "heard on the main address" } else { "a pooler is in between" };
            judge_direct(main, hears(&direct, tls, mouth).await)
        }
        (Ok(true), None) => Finding::ok(NAME, "heard on the main address"),
        (Ok(false), None) => Finding::bad(
            NAME,
            "not heard: a pooler in transaction mode is in between",
            VOIDS,
            "name the database itself in the address, with listen=HOST:PORT",
        ),
        (Err(error), _) => Finding::bad(
            NAME,
            error.to_string(),
            VOIDS,
            "see that another connection can be made: max_connections, or the limit of the pooler",
        ),
    }
}

fn judge_direct(main: &str, heard: Result<bool>) -> Finding {
    let remedy = "let listen=HOST:PORT name the primary itself, and no pooler in transaction mode";
    match heard {
        Ok(true) => Finding::ok(NAME, format!("{main}, heard on the address of listen=")),
        Ok(false) => {
            let found = format!("{main}, not heard on the address of listen=");
            Finding::bad(NAME, found, VOIDS, remedy)
        }
        Err(error) => Finding::bad(NAME, format!("{main}, listen=: {error}"), VOIDS, remedy),
    }
}

/// How the database itself is reached.
fn direct(main: &Config, (host, port): &(String, u16)) -> Config {
    let mut config = Config::new();
    config.host(host).port(*port).application_name("tenure doctor");
    config.ssl_mode(main.get_ssl_mode()).connect_timeout(HEARD_MAX);
    main.get_user().map(|user| config.user(user));
    main.get_password().map(|password| config.password(password));
    main.get_dbname().map(|name| config.dbname(name));
    config
}

/// Whether a new connection hears what another one says.
async fn hears(config: &Config, tls: &Tls, mouth: &Link) -> Result<bool> {
    let away = |error: tokio_postgres::Error| unavailable(&error);
    let (client, mut connection) = config.connect(tls.clone()).await.map_err(away)?;
    // Nobody else listens there, and nothing is said there ever again.
    let channel = format!("tenure_doctor_{}", random::request_id());
    let saying = async {
        client.batch_execute(&format!("LISTEN {channel}")).await.map_err(away)?;
        mouth.rows("SELECT pg_notify($1, '')", &[(&channel as _, Type::TEXT)]).await?;
        pending().await
    };
    let hearing = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message.map_err(away)?
                && note.channel() == channel
            {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let first = async {
        tokio::select! {
            failed = saying => failed,
            heard = hearing => heard,
        }
    };
    tokio::time::timeout(HEARD_MAX, first).await.unwrap_or(Ok(false))
}
