"""Object stores: what is asked of one, who answers, by which credentials, and how patiently it is asked."""
