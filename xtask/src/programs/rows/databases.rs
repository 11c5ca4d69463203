//! Databases. A script starts the server, fills it, queries it, and ends it.

use super::{ProgramRow, all, nothing, words};
use crate::machine::packages::Need;
use crate::programs::place::InputFolder;

fn script(place: &InputFolder, text: &str, size: u64) -> Vec<String> {
    let mut command = words(["/usr/bin/python3", "-c", text]);
    command.extend([place.scaled(size), place.seed.to_string()]);
    command
}

const PYTHON: Need = Need { test: "test -x /usr/bin/python3", packages: &["python3-minimal"] };

pub const REDIS: ProgramRow = ProgramRow {
    name: "redis",
    what: "redis-server is filled, saves by a fork while it is written to, and a fresh server loads the dump",
    needs: &[
        PYTHON,
        Need {
            test: "command -v redis-server && command -v redis-cli",
            packages: &["redis-server", "redis-tools"],
        },
    ],
    prepare: nothing,
    command: |place| script(place, include_str!("../inputs/redis.py"), 600_000),
    compared: all,
};

pub const SQLITE: ProgramRow = ProgramRow {
    name: "sqlite",
    what: "the SQLite shell fills, changes and checks a database in memory",
    needs: &[Need { test: "command -v sqlite3", packages: &["sqlite3"] }],
    prepare: |place| {
        let statements = include_str!("../inputs/sqlite.sql").replace("$ROWS", &place.scaled(1_500_000));
        place.file("statements.sql", &statements)
    },
    command: |place| {
        words(["sqlite3", "-bail", ":memory:", &format!(".read '{}'", place.path("statements.sql"))])
    },
    compared: all,
};

pub const POSTGRESQL: ProgramRow = ProgramRow {
    name: "postgresql",
    what: "pgbench changes a database in PostgreSQL, and sorts and joins take much memory",
    needs: &[
        PYTHON,
        Need {
            test: "ls /usr/lib/postgresql/*/bin/postgres /usr/lib/postgresql/*/bin/pgbench",
            packages: &["postgresql"],
        },
    ],
    prepare: nothing,
    command: |place| script(place, include_str!("../inputs/postgresql.py"), 1_200_000),
    compared: all,
};
