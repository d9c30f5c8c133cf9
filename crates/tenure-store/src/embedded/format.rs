//! Format of the file and its migrations.

use std::path::Path;

use rusqlite::Connection;

use super::error::Error;

/// Application id of a Tenure store in the SQLite header: "TENU".
const APPLICATION_ID: i64 = 0x5445_4e55;
/// Current format.
const FORMAT: i64 = 4;
/// Migration to each format from the previous one.
const MIGRATIONS: [&str; 4] = [
    include_str!("schema.sql"),
    include_str!("jobs.sql"),
    include_str!("keys.sql"),
    include_str!("engine.sql"),
];

/// Migrates a file to the current format, one version at a time.
pub(super) fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    let found = usize::try_from(pragma(connection, "user_version")?).unwrap_or(0);
    for (at, script) in MIGRATIONS.iter().enumerate().skip(found) {
        let format = at + 1;
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; {script} PRAGMA application_id = {APPLICATION_ID};
             PRAGMA user_version = {format}; COMMIT;"
        ))?;
    }
    Ok(())
}

/// Rejects a file of another program or of a newer version.
pub(super) fn check_format(connection: &Connection, path: &Path) -> Result<(), Error> {
    let foreign = |_| Error::Foreign(path.to_path_buf());
    let application = pragma(connection, "application_id").map_err(foreign)?;
    let found = pragma(connection, "user_version").map_err(foreign)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(foreign)?;
    if tables > 0 && application != APPLICATION_ID {
        return Err(Error::Foreign(path.to_path_buf()));
    }
    if found > FORMAT {
        return Err(Error::Newer { path: path.to_path_buf(), found, known: FORMAT });
    }
    Ok(())
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}
