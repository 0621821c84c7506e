"""Whether a machine can do its part. Each module looks at one thing: `measure` asks, `judge` only thinks."""
