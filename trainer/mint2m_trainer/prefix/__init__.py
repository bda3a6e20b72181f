"""The resident prefix: layout, pages, decisions, and the session that captures, replays and reverses it."""
