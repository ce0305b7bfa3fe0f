"""What the controller tells one engine. Pure: events in, effects out, time as an argument."""
