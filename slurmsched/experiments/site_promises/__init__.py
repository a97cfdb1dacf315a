"""What each policy promises, measured as a site runs it: default settings, restarts that cost, careless users."""
