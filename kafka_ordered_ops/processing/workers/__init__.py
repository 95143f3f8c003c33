"""Run the user's function: in threads, in an event loop, or in processes."""
