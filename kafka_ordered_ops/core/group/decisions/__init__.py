"""What a group decides: each verb takes facts, and returns a change or an error."""
