"""Programs that show what Tickertape does."""
