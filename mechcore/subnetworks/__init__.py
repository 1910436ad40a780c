"""What several subnetworks share, and how small they can be."""
