"""What is known of the fleet, without a Redis."""
