//! Checks that notifications are delivered: sends one on the main address and listens for it.
//!
//! A pooler in transaction mode loses it, because the server connection that listens is not tied to
//! the client.

use std::future::{pending, poll_fn};
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Config};

use super::Finding;
use crate::postgres::connection::{Connection, unavailable};
use crate::postgres::settings::Settings;
use crate::postgres::tls::Tls;
use crate::random;
use crate::store::Result;

/// Time to wait for the notification.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Fill level of the notification queue above which it is reported.
const QUEUE_MAX_PERCENT: i32 = 50;

const NAME: &str = "wake-ups";
const VOIDS: &str = "no lock guarantee; but requests that wait at one server notice a release at \
                     another only when they poll, up to a second later";

pub(super) async fn examine(
    settings: &Settings,
    tls: &Tls,
    sender: &Connection,
    queue_percent: i32,
) -> Finding {
    if queue_percent > QUEUE_MAX_PERCENT {
        return Finding::bad(
            NAME,
            format!("the notification queue is {queue_percent} % full"),
            "when it is full, transactions that notify fail",
            "end the session that listens inside a long transaction: see pg_stat_activity",
        );
    }
    let direct = settings.listen.as_ref().map(|address| direct(&settings.config, address));
    match (is_delivered(&settings.config, tls, sender).await, direct) {
        (Ok(is_received), Some(direct)) => {
            let main =
                if is_received { "received on the main address" } else { "a pooler is in between" };
            evaluate_direct(main, is_delivered(&direct, tls, sender).await)
        }
        (Ok(true), None) => Finding::ok(NAME, "received on the main address"),
        (Ok(false), None) => Finding::bad(
            NAME,
            "not received: a pooler in transaction mode is in between",
            VOIDS,
            "add the address of the database itself to the URL, with listen=HOST:PORT",
        ),
        (Err(error), _) => Finding::bad(
            NAME,
            error.to_string(),
            VOIDS,
            "allow one more connection: raise max_connections, or the limit of the pooler",
        ),
    }
}

fn evaluate_direct(main: &str, is_received: Result<bool>) -> Finding {
    let remedy = "let listen=HOST:PORT name the primary itself, not a pooler in transaction mode";
    match is_received {
        Ok(true) => Finding::ok(NAME, format!("{main}, received on the address of listen=")),
        Ok(false) => {
            let found = format!("{main}, not received on the address of listen=");
            Finding::bad(NAME, found, VOIDS, remedy)
        }
        Err(error) => Finding::bad(NAME, format!("{main}, listen=: {error}"), VOIDS, remedy),
    }
}

/// Returns the configuration for a direct connection to the database.
fn direct(main: &Config, (host, port): &(String, u16)) -> Config {
    let mut config = Config::new();
    config.host(host).port(*port).application_name("tenure doctor");
    config.ssl_mode(main.get_ssl_mode()).connect_timeout(RECEIVE_TIMEOUT);
    main.get_user().map(|user| config.user(user));
    main.get_password().map(|password| config.password(password));
    main.get_dbname().map(|name| config.dbname(name));
    config
}

/// Whether a new connection receives a notification of another one.
async fn is_delivered(config: &Config, tls: &Tls, sender: &Connection) -> Result<bool> {
    let to_store_error = unavailable;
    let (client, mut connection) = config.connect(tls.clone()).await.map_err(to_store_error)?;
    // A channel of its own, used once.
    let channel = format!("tenure_doctor_{}", random::request_id());
    let send = async {
        client.batch_execute(&format!("LISTEN {channel}")).await.map_err(to_store_error)?;
        sender.query("SELECT pg_notify($1, '')", &[(&channel as _, Type::TEXT)]).await?;
        pending().await
    };
    let receive = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message.map_err(to_store_error)?
                && note.channel() == channel
            {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let first = async {
        tokio::select! {
            failed = send => failed,
            received = receive => received,
        }
    };
    tokio::time::timeout(RECEIVE_TIMEOUT, first).await.unwrap_or(Ok(false))
}
