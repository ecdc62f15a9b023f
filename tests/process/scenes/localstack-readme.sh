# In the checkout, into which nothing is written (the stage has a copy).
cd "$REPOSITORY"
