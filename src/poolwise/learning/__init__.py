"""Learning: a new policy from several logs, evaluated on rows that it was not learned from."""
