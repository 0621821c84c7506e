"""The tables. Derived from the records on disk and the store's rows: a new version is a new file, never a migration."""

from __future__ import annotations

#: Raised with every change of the tables or of what is put into them.
VERSION = 3

#: `lines` is narrow, as filters, sorting and sums read all lines of an evaluation; `texts` holds what only shown lines
#: need. Times are seconds since 1970.
SCHEMA = """
CREATE TABLE evaluations (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  submitted REAL NOT NULL,
  owner TEXT NOT NULL,
  executor TEXT NOT NULL,
  -- What a search looks into: id, name, executor, owner, agents, models, datasets; folded.
  words TEXT NOT NULL,
  total INTEGER NOT NULL,
  -- Lines with a row.
  done INTEGER NOT NULL DEFAULT 0,
  -- So many rows of the store's list of commits are in, and this trial's was the last.
  seen INTEGER NOT NULL DEFAULT 0,
  last TEXT NOT NULL DEFAULT '',
  -- Another number after every change, in this file and any before it.
  version INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX evaluations_by_time ON evaluations (submitted);

-- What the attempts of one agent and model on one task have in common: sums are made by this number, not by texts.
CREATE TABLE cells (
  evaluation INTEGER NOT NULL,
  cell INTEGER NOT NULL,
  agent TEXT NOT NULL,
  model TEXT NOT NULL,
  dataset TEXT NOT NULL,
  task TEXT NOT NULL,
  category TEXT NOT NULL,
  difficulty TEXT NOT NULL,
  planned INTEGER NOT NULL,
  PRIMARY KEY (evaluation, cell)
) WITHOUT ROWID;

CREATE TABLE lines (
  evaluation INTEGER NOT NULL,
  position INTEGER NOT NULL,
  cell INTEGER NOT NULL,
  trial TEXT NOT NULL,
  task TEXT NOT NULL,
  agent TEXT NOT NULL,
  model TEXT NOT NULL,
  dataset TEXT NOT NULL,
  category TEXT NOT NULL,
  difficulty TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  estimated REAL NOT NULL,
  -- What the plan alone said, before past runs were looked at.
  planned REAL NOT NULL,
  -- Null or empty until the trial is committed.
  outcome TEXT,
  reward_name TEXT NOT NULL DEFAULT '',
  reward REAL,
  seconds REAL,
  started REAL,
  finished REAL,
  input_tokens INTEGER,
  cache_tokens INTEGER,
  output_tokens INTEGER,
  cost REAL,
  error TEXT NOT NULL DEFAULT '',
  worker TEXT NOT NULL DEFAULT '',
  run INTEGER NOT NULL DEFAULT 0,
  committed REAL,
  -- Whether the result was taken over from another evaluation.
  carried INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (evaluation, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX lines_by_trial ON lines (evaluation, trial);
CREATE INDEX lines_by_task ON lines (dataset, task) WHERE dataset != '';

CREATE TABLE texts (
  evaluation INTEGER NOT NULL,
  position INTEGER NOT NULL,
  -- The planned labels, and the committed row, as JSON.
  labels TEXT NOT NULL,
  row TEXT,
  PRIMARY KEY (evaluation, position)
) WITHOUT ROWID;

-- Rewards beside the main one, where a trial has several.
CREATE TABLE others (
  evaluation INTEGER NOT NULL,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  value REAL NOT NULL,
  PRIMARY KEY (evaluation, position, name)
) WITHOUT ROWID;
"""
