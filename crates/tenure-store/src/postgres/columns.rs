//! Parameters of set-based statements: one array per column.

use std::borrow::Cow;

use tokio_postgres::types::{ToSql, Type};

use super::client::PgClient;

/// The columns of one statement: texts, then numbers.
#[derive(Clone, Default)]
pub(super) struct Columns<'a> {
    rows: usize,
    texts: Vec<Vec<Option<Cow<'a, str>>>>,
    numbers: Vec<Vec<Option<i64>>>,
}

/// Returns a borrowed text value.
pub(super) fn borrowed(text: &str) -> Option<Cow<'_, str>> {
    Some(Cow::Borrowed(text))
}

/// Returns an owned text value.
pub(super) fn owned<'a>(text: String) -> Option<Cow<'a, str>> {
    Some(Cow::Owned(text))
}

/// Returns the `Display` text of a value.
pub(super) fn display<'a>(value: &impl ToString) -> Option<Cow<'a, str>> {
    Some(Cow::Owned(value.to_string()))
}

impl<'a> Columns<'a> {
    pub(super) fn new(texts: usize, numbers: usize) -> Self {
        let (texts, numbers) = (vec![Vec::new(); texts], vec![Vec::new(); numbers]);
        Self { rows: 0, texts, numbers }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub(super) fn push<const T: usize, const N: usize>(
        &mut self,
        texts: [Option<Cow<'a, str>>; T],
        numbers: [Option<i64>; N],
    ) {
        self.rows += 1;
        for (column, value) in self.texts.iter_mut().zip(texts) {
            column.push(value);
        }
        for (column, value) in self.numbers.iter_mut().zip(numbers) {
            column.push(value);
        }
    }

    /// Splits the rows into chunks of at most `rows_max`.
    pub(super) fn split(mut self, rows_max: usize) -> Vec<Self> {
        let mut chunks = Vec::new();
        while self.rows > rows_max {
            let rest = Self {
                rows: self.rows - rows_max,
                texts: self.texts.iter_mut().map(|c| c.split_off(rows_max)).collect(),
                numbers: self.numbers.iter_mut().map(|c| c.split_off(rows_max)).collect(),
            };
            self.rows = rows_max;
            chunks.push(std::mem::replace(&mut self, rest));
        }
        if !self.is_empty() {
            chunks.push(self);
        }
        chunks
    }

    /// Executes a statement with the columns as parameters, unless there are no rows.
    pub(super) async fn execute(
        &self,
        client: &PgClient,
        sql: &str,
    ) -> Result<u64, tokio_postgres::Error> {
        if self.rows == 0 {
            return Ok(0);
        }
        let texts = self.texts.iter().map(|c| (c as &(dyn ToSql + Sync), Type::TEXT_ARRAY));
        let numbers = self.numbers.iter().map(|c| (c as &(dyn ToSql + Sync), Type::INT8_ARRAY));
        let params: Vec<_> = texts.chain(numbers).collect();
        client.execute_typed(sql, &params).await
    }
}
